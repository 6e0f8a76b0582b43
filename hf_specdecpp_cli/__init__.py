"""The command line, `specdecpp`. Every command is a thin layer over functions of the library.

It is a package of its own, since importing the library takes seconds: `--help` does not import it.
"""

from .app import app, speaks_plainly
from .bench import bench_app
from .calibrate import calibrate
from .chat import chat
from .compile import compile
from .demo import demo
from .label import label
from .push import push
from .trace import trace
from .train import train

__all__ = ["app", "speaks_plainly"]

for command in (chat, demo, label, train, trace, calibrate, compile, push):
    app.command()(command)
app.add_typer(bench_app, name="bench")

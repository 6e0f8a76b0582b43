"""The command line, `specdecpp`. Every command is a thin layer over functions of the library."""

from .app import app, speaks_plainly
from .bench import bench_app
from .calibrate import calibrate
from .compile import compile
from .demo import demo
from .label import label
from .push import push
from .trace import trace
from .train import train

__all__ = ["app", "speaks_plainly"]

for command in (demo, label, train, trace, calibrate, compile, push):
    app.command()(command)
app.add_typer(bench_app, name="bench")

"""`darkbloom-py bench`: what a server does for those who ask it."""

import typer

from provider.bench.serving import serving

app = typer.Typer(help="Measure a server.", no_args_is_help=True)
app.command("serving")(serving)

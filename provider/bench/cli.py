"""`darkbloom-py bench`: what a server does for those who ask it, and what a model takes of this machine."""

import typer

from provider.bench.activation import activation
from provider.bench.exact import exact
from provider.bench.fleet import fleet
from provider.bench.mtp import mtp
from provider.bench.parking import parking
from provider.bench.serving import serving

app = typer.Typer(help="Measure a server, or a model on this machine.", no_args_is_help=True)
app.command("mtp")(mtp)
app.command("serving")(serving)
app.command("activation")(activation)
app.command("parking")(parking)
app.command("exact")(exact)
app.command("fleet")(fleet)

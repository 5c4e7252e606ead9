"""Erlang's machine (BEAM): processes that listen, accept and talk by its drivers."""
import pathlib

from frame import Program

program = Program("erlang", ["erlang-base"], large=True)
SOURCE = pathlib.Path(__file__).parent.parent / "sources/echo.escript"


@program.check("echoes by gen_tcp, a process per connection", quick=True, ways=("direct", "stack", "network"))
def echoes(place, tally):
    server = place.start(["escript", SOURCE, "serve", place.address, "8691"])
    server.wait_for("listening")
    for count, size in (1, 5_000_000), (50, 20_000):
        ran = place.peer(["escript", SOURCE, "ask", place.address, "8691", str(count), str(size)])
        tally.expect(f"{count} at a time, {size} bytes", f"{count} same" in ran.out, ran)
    tally.expect("the server is alive", server.alive(), server.output())

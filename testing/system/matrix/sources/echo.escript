#!/usr/bin/env escript
%% serve ADDRESS PORT: echoes, a process per connection. ask ADDRESS PORT COUNT SIZE: so many connections at a time, each with so many bytes.
main(["serve", Address, Port]) ->
    {ok, Ip} = inet:parse_address(Address),
    {ok, Listener} = gen_tcp:listen(list_to_integer(Port), [binary, {ip, Ip}, {active, false}, {reuseaddr, true}, {backlog, 128}]),
    io:format("listening~n"),
    accept(Listener);
main(["ask", Address, Port, Count, Size]) ->
    {ok, Ip} = inet:parse_address(Address),
    Self = self(),
    N = list_to_integer(Count),
    [spawn_link(fun() -> Self ! ask(Ip, list_to_integer(Port), list_to_integer(Size)) end) || _ <- lists:seq(1, N)],
    Same = [receive Answer -> Answer end || _ <- lists:seq(1, N)],
    io:format("~p same~n", [length([S || S <- Same, S])]).

accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Pid = spawn(fun() -> receive go -> echo(Socket) end end),
    ok = gen_tcp:controlling_process(Socket, Pid),
    Pid ! go,
    accept(Listener).

echo(Socket) ->
    inet:setopts(Socket, [{active, once}]),
    receive
        {tcp, Socket, Data} -> ok = gen_tcp:send(Socket, Data), echo(Socket);
        {tcp_closed, Socket} -> ok
    end.

ask(Ip, Port, Size) ->
    {ok, Socket} = gen_tcp:connect(Ip, Port, [binary, {active, false}]),
    Data = binary:copy(<<"0123456789">>, Size div 10),
    spawn_link(fun() -> ok = gen_tcp:send(Socket, Data) end),
    {ok, Back} = gen_tcp:recv(Socket, byte_size(Data), 60000),
    gen_tcp:close(Socket),
    Back =:= Data.

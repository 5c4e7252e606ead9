#!/usr/bin/python3
"""Sends each TEXT on a connection of its own, one after the other, and prints what comes back until the end of the stream.

Usage: talk.py ADDRESS PORT TEXT...
"""
import socket
import sys

for text in sys.argv[3:]:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as s:
        s.sendall(text.encode() + b"\n")
        s.shutdown(socket.SHUT_WR)
        while part := s.recv(65536):
            sys.stdout.write(part.decode())

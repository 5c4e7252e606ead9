#!/usr/bin/python3
"""Runs COMMAND by system() on each connection, which is its standard input and output. A process each.

Usage: behind_system.py ADDRESS PORT COMMAND
"""
import os
import signal
import socket
import sys

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    connection, _ = listener.accept()
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listener.close()
        for descriptor in 0, 1:
            os.dup2(connection.fileno(), descriptor)
        connection.close()
        os._exit(os.waitstatus_to_exitcode(os.system(sys.argv[3])))
    connection.close()

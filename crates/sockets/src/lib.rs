//! POSIX sockets on the ring contract; builds libtowpath.so

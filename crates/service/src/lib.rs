//! towpathd: configuration, registration, control interface, routes and neighbours

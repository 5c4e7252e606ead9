//! The address of a server: `unix:PATH`, `tcp:HOST:PORT` or `rdma:HOST:PORT`; for tests `software-verbs:SEED`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A UNIX socket. Each side believes its own user and root.
    Unix(PathBuf),
    /// TCP, encrypted, between sides that have one token; or in the clear, over a trusted network.
    Tcp(String),
    /// RDMA between the adapters that have the addresses of a TCP connection to this one. An adapter encrypts nothing,
    /// so the network must be trusted.
    Rdma(String),
    /// For tests: a server in this process, over RDMA verbs without an adapter, on a faulty fabric of this seed. If
    /// the second number is not 0, the write of that number fails.
    Software(u64, u64),
}

impl FromStr for Address {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", at)) if at.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
                Ok(Self::Tcp(at.into()))
            }
            Some(("rdma", at)) if at.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
                Ok(Self::Rdma(at.into()))
            }
            Some(("software-verbs", numbers)) => {
                let (seed, fails) = numbers.split_once(':').unwrap_or((numbers, "0"));
                match (seed.parse(), fails.parse()) {
                    (Ok(seed), Ok(fails)) => Ok(Self::Software(seed, fails)),
                    _ => Err(format!("{text:?}: software-verbs:SEED or software-verbs:SEED:WRITE")),
                }
            }
            _ => Err(format!("{text:?} is no address; write unix:PATH, tcp:HOST:PORT or rdma:HOST:PORT")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(at) => write!(f, "tcp:{at}"),
            Self::Rdma(at) => write!(f, "rdma:{at}"),
            Self::Software(seed, fails) => write!(f, "software-verbs:{seed}:{fails}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in [
            "unix:/run/remote.sock",
            "tcp:127.0.0.1:7000",
            "tcp:[::1]:7000",
            "tcp:server.example:7000",
            "rdma:10.0.0.1:7000",
            "software-verbs:7:0",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in
            ["", "unix:", "software-verbs:x", "tcp:7000", "tcp:host", "rdma:host", "/run/remote.sock", "udp:1.2.3.4:5"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}

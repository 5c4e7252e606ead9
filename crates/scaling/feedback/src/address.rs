//! The sources, as command lines name them.

use crate::endpoint::{AddressError, Endpoint};
use crate::prometheus::Selection;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A source, as it is named on a command line.
#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    /// `unix:PATH` or just a path: a datagram socket that is made here. Applications send lines to it.
    Datagrams(PathBuf),
    /// `redis://HOST:PORT` or `redis:PATH`.
    Redis(Endpoint),
    /// `memcached://HOST:PORT` or `memcached:PATH`.
    Memcached(Endpoint),
    /// `http://HOST:PORT/PATH#name=...`: a page that Prometheus can scrape.
    Prometheus {
        /// The server.
        endpoint: Endpoint,
        /// The page.
        path: String,
        /// The metrics of the page that count.
        selection: Selection,
    },
    /// `towpath`: a service of this machine.
    Towpath,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = |f: &mut fmt::Formatter<'_>, kind: &str, endpoint: &Endpoint| match endpoint {
            Endpoint::Tcp(..) => write!(f, "{kind}://{endpoint}"),
            Endpoint::Unix(_) => write!(f, "{kind}:{endpoint}"),
        };
        match self {
            Self::Datagrams(path) => write!(f, "unix:{}", path.display()),
            Self::Redis(endpoint) => server(f, "redis", endpoint),
            Self::Memcached(endpoint) => server(f, "memcached", endpoint),
            Self::Prometheus { endpoint, path, .. } => write!(f, "http://{endpoint}{path}"),
            Self::Towpath => f.write_str("towpath"),
        }
    }
}

fn wrong<T>(text: &str) -> Result<T, AddressError> {
    Err(AddressError(text.to_owned()))
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`.
fn host_and_port(text: &str, usual: u16) -> Result<Endpoint, AddressError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let Some((host, port)) = rest.split_once(']') else { return wrong("a bracket is not closed") };
            (host, port.strip_prefix(':'))
        }
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control() || c == '@') {
        return wrong("a host is missing, or is none");
    }
    match port.map_or(Ok(usual), str::parse) {
        Ok(port) => Ok(Endpoint::Tcp(host.to_owned(), port)),
        Err(_) => wrong("a port is a number below 65536"),
    }
}

/// The part after `redis:` or `memcached:`.
fn server(rest: &str, usual: u16) -> Result<Endpoint, AddressError> {
    match rest.strip_prefix("//") {
        Some(host) => host_and_port(host.trim_end_matches('/'), usual),
        None if rest.starts_with('/') => Ok(Endpoint::Unix(rest.into())),
        None => wrong("a host comes after //, or an absolute path"),
    }
}

fn prometheus(rest: &str) -> Result<Address, AddressError> {
    let Some((page, selection)) = rest.split_once('#') else {
        return wrong("what counts is missing: http://HOST:PORT/metrics#name=METRIC");
    };
    let (host, path) = page.split_once('/').unwrap_or((page, "metrics"));
    if path.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return wrong("there is a blank in the path");
    }
    let (endpoint, selection) = (host_and_port(host, 80)?, selection.parse()?);
    Ok(Address::Prometheus { endpoint, path: format!("/{path}"), selection })
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.split_once(':') {
            _ if text == "towpath" => Ok(Self::Towpath),
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Datagrams(path.into())),
            Some(("redis", rest)) => server(rest, 6379).map(Self::Redis),
            Some(("memcached", rest)) => server(rest, 11211).map(Self::Memcached),
            Some(("http", rest)) => match rest.strip_prefix("//") {
                Some(rest) => prometheus(rest),
                None => wrong("a host comes after http://"),
            },
            _ if text.contains('/') && !text.contains("://") => Ok(Self::Datagrams(text.into())),
            _ => wrong(
                "a source is towpath, unix:PATH, redis://HOST:PORT, memcached://HOST:PORT or http://HOST:PORT/PATH#name=METRIC",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sources_are_named_as_they_are_shown() {
        for text in [
            "unix:/run/feedback",
            "redis://127.0.0.1:6379",
            "redis:/run/redis.sock",
            "memcached://[::1]:11211",
            "towpath",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let usual: Address = "redis://cache".parse().unwrap();
        assert_eq!(usual.to_string(), "redis://cache:6379");
        assert_eq!("/tmp/a".parse::<Address>().unwrap(), Address::Datagrams("/tmp/a".into()));
        let scrape: Address = "http://127.0.0.1:9090/metrics#name=requests_total".parse().unwrap();
        assert_eq!(scrape.to_string(), "http://127.0.0.1:9090/metrics");
    }

    #[test]
    fn what_is_no_source_is_refused_with_the_reason() {
        for text in [
            "",
            "redis",
            "redis://",
            "redis://:6379",
            "redis://a:b",
            "redis://a:65536",
            "redis://[::1",
            "redis://secret@host",
            "redis:relative",
            "https://a/b#name=c",
            "http://a/metrics",
            "http://a/metrics#",
            "http://a/me trics#name=c",
            "unix:",
        ] {
            assert!(text.parse::<Address>().is_err_and(|error| !error.to_string().is_empty()), "{text}");
        }
    }
}

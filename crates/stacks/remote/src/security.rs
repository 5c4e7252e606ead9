//! How a link is kept from others, by the kind of its address.

use crate::address::Address;
use crate::token::{Token, TokenError};
use std::io;
use std::path::Path;

/// The operator's word about the way between the two sides.
#[derive(Clone, Debug)]
pub enum Security {
    /// Nothing. Only UNIX sockets can be used, whose peers the kernel names.
    Unset,
    /// Both sides have this token: TCP is authenticated and encrypted with it.
    Token(Token),
    /// Everybody who reaches this host by the network is believed, and may read and change everything.
    TrustedNetwork,
}

impl Security {
    /// Security as configured. Reads the token.
    pub fn of(token: Option<&Path>, trust_network: bool) -> Result<Self, TokenError> {
        Ok(match token {
            Some(file) => Self::Token(Token::load(file)?),
            None if trust_network => Self::TrustedNetwork,
            None => Self::Unset,
        })
    }

    /// The token that encrypts a link to or from this address; `None` if it needs none.
    pub(crate) fn of_link(&self, address: &Address) -> io::Result<Option<&Token>> {
        let refused = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        match (address, self) {
            (Address::Tcp(_), Self::Token(token)) => Ok(Some(token)),
            (Address::Tcp(_), Self::Unset) => refused(
                "over TCP every user who reaches the port would be believed, of this host too; give both sides a token \
                 (\"towpath kernel-stack --make-token FILE\", then --token FILE), or say --trust-network on a closed network",
            ),
            (Address::Rdma(_), Self::Unset | Self::Token(_)) => refused(
                "an RDMA adapter neither authenticates nor encrypts; say --trust-network, without --token, on a closed \
                 network, or use tcp with a token",
            ),
            (Address::Unix(_), Self::Token(_)) => {
                refused("a UNIX socket has no use for a token, as the kernel names its peer; leave --token out")
            }
            (Address::Tcp(_) | Address::Rdma(_), Self::TrustedNetwork)
            | (Address::Unix(_), Self::Unset | Self::TrustedNetwork)
            | (Address::Software(..), _) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tcp_needs_a_token_or_a_trusted_network_on_this_host_too() {
        let file = std::env::temp_dir().join(format!("towpath-security-{}", std::process::id()));
        Token::make(&file).unwrap();
        let [unset, token, trusted] = [(None, false), (Some(&*file), false), (None, true)]
            .map(|(file, trust)| Security::of(file, trust).unwrap());
        std::fs::remove_file(&file).unwrap();
        let of = |security: &Security, text: &str| {
            security.of_link(&text.parse().unwrap()).map(|token| token.is_some()).map_err(|why| why.to_string())
        };
        for at in ["tcp:127.0.0.1:0", "tcp:[::1]:0", "tcp:192.0.2.1:7000"] {
            let why = of(&unset, at).unwrap_err();
            assert!(why.contains("--make-token") && why.contains("--trust-network"), "{why}");
            assert_eq!((of(&token, at), of(&trusted, at)), (Ok(true), Ok(false)));
        }
        let rdma = "rdma:10.0.0.1:7000";
        for security in [&unset, &token] {
            assert!(of(security, rdma).unwrap_err().contains("--trust-network"), "an adapter does not encrypt");
        }
        assert_eq!(of(&trusted, rdma), Ok(false));
        assert_eq!((of(&unset, "unix:/a"), of(&trusted, "unix:/a")), (Ok(false), Ok(false)));
        assert!(of(&token, "unix:/a").unwrap_err().contains("leave --token out"), "it would do nothing");
    }
}

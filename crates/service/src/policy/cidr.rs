//! Blocks of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use towpath_runtime::Block;

/// A block of addresses of one family: `10.0.0.0/8`, `fd00::/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// Is this address in the block? An IPv4-mapped IPv6 address counts as the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => own.to_bits() == other.to_bits() & mask_v4(self.prefix),
            (IpAddr::V6(own), IpAddr::V6(other)) => own.to_bits() == other.to_bits() & mask_v6(self.prefix),
            _ => false,
        }
    }
    /// Does it hold all addresses of its family?
    pub fn is_everything(&self) -> bool {
        self.prefix == 0
    }
    /// As the filter for listeners knows it.
    pub fn block(&self) -> Block {
        Block { addr: self.address, bits: self.prefix }
    }
    /// Is it a block of IPv4 addresses?
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }
    /// Are all its addresses loopback addresses?
    pub fn is_loopback(&self) -> bool {
        self.address.is_loopback() && self.prefix >= if self.is_ipv4() { 8 } else { 128 }
    }
}

fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no block of addresses; write \"10.0.0.0/8\", \"fd00::/8\" or one address");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(most);
        if prefix > most {
            return Err(wrong());
        }
        let base: IpAddr = match address {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & mask_v4(prefix)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & mask_v6(prefix)).into(),
        };
        if base != address {
            return Err(format!("{text:?} has bits set behind its prefix; write \"{base}/{prefix}\""));
        }
        if matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
            return Err(format!("{text:?} is IPv4 in the form of IPv6; write it as IPv4"));
        }
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = if self.address.is_ipv4() { 32 } else { 128 };
        if self.prefix == most { write!(f, "{}", self.address) } else { write!(f, "{}/{}", self.address, self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_block_contains_its_own_family_only() {
        let contains = |block: &str, addr: &str| block.parse::<Cidr>().unwrap().contains(addr.parse().unwrap());
        assert!(contains("10.0.0.0/8", "10.255.0.1") && !contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("0.0.0.0/0", "1.2.3.4") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("::/0", "fe80::1") && !contains("::/0", "1.2.3.4"));
        assert!(contains("fd00::/8", "fd12::3") && !contains("fd00::/8", "fe12::3"));
        assert!(contains("127.0.0.1", "127.0.0.1") && !contains("127.0.0.1", "127.0.0.2"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.1.1"), "mapped IPv4 is IPv4");
        assert!(!contains("::/0", "::ffff:10.1.1.1"));
    }

    #[test]
    fn a_block_says_what_it_holds() {
        let block = |text: &str| text.parse::<Cidr>().unwrap();
        for (text, everything, ipv4, loopback, bits) in [
            ("0.0.0.0/0", true, true, false, 0),
            ("::/0", true, false, false, 0),
            ("0.0.0.0/1", false, true, false, 1),
            ("::/1", false, false, false, 1),
            ("127.0.0.0/8", false, true, true, 8),
            ("126.0.0.0/7", false, true, false, 7),
            ("127.1.0.0/16", false, true, true, 16),
            ("127.0.0.1", false, true, true, 32),
            ("10.0.0.0/8", false, true, false, 8),
            ("::1", false, false, true, 128),
            ("::2", false, false, false, 128),
        ] {
            let block = block(text);
            let said = (block.is_everything(), block.is_ipv4(), block.is_loopback());
            assert_eq!(said, (everything, ipv4, loopback), "{text}");
            let first = text.split('/').next().unwrap().parse().unwrap();
            assert_eq!(block.block(), Block { addr: first, bits });
        }
    }

    #[test]
    fn a_block_ends_at_its_last_bit() {
        let contains = |block: &str, addr: &str| block.parse::<Cidr>().unwrap().contains(addr.parse().unwrap());
        assert!(contains("10.0.0.2/31", "10.0.0.3") && !contains("10.0.0.2/31", "10.0.0.4"));
        assert!(contains("128.0.0.0/1", "255.255.255.255") && !contains("128.0.0.0/1", "127.255.255.255"));
        assert!(contains("fd00::2/127", "fd00::3") && !contains("fd00::2/127", "fd00::1"));
        assert!(contains("8000::/1", "ffff::") && !contains("8000::/1", "7fff::"));
        for most in ["10.0.0.1/32", "::1/128"] {
            assert!(most.parse::<Cidr>().is_ok(), "{most}");
        }
    }

    #[test]
    fn wrong_blocks_are_explained() {
        let error = |text: &str| text.parse::<Cidr>().unwrap_err();
        assert_eq!(error("10.0.0.1/8"), "\"10.0.0.1/8\" has bits set behind its prefix; write \"10.0.0.0/8\"");
        for text in ["10.0.0.0/33", "10.0.0/8", "::/129", "example.org", "", "/8", "10.0.0.0/"] {
            assert!(error(text).contains("is no block of addresses"), "{text}");
        }
        assert!(error("::ffff:10.0.0.0/104").contains("write it as IPv4"));
        for text in ["10.0.0.0/8", "fd00::/8", "1.2.3.4", "::1", "0.0.0.0/0"] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), text);
        }
    }
}

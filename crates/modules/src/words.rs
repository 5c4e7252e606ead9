//! Keys and values of maps, as an operator writes them.

use crate::object::{MapKind, MapSpec};
use std::net::IpAddr;

/// Bytes of this length in words: a number, or `0x` and hexadecimal digits of a number, in the machine's order; an address;
/// `hex:` and two digits for each byte.
fn bytes(word: &str, length: usize) -> Result<Vec<u8>, String> {
    if let Some(digits) = word.strip_prefix("hex:") {
        let bytes =
            from_hex(digits).ok_or_else(|| format!("{word:?}: two hexadecimal digits for each byte are needed"))?;
        return if bytes.len() == length { Ok(bytes) } else { Err(wrong_length(word, bytes.len(), length)) };
    }
    let number = match word.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16).ok(),
        None => word.parse::<u128>().ok(),
    };
    if let Some(number) = number {
        let all = number.to_le_bytes();
        let used = 16 - number.leading_zeros() as usize / 8;
        if used > length {
            return Err(wrong_length(word, used, length));
        }
        let mut bytes = all[..length.min(16)].to_vec();
        bytes.resize(length, 0);
        return Ok(bytes);
    }
    match word.parse() {
        Ok(IpAddr::V4(address)) if length == 4 => Ok(address.octets().to_vec()),
        Ok(IpAddr::V6(address)) if length == 16 => Ok(address.octets().to_vec()),
        Ok(address) => Err(wrong_length(word, if address.is_ipv4() { 4 } else { 16 }, length)),
        Err(_) => Err(format!("{word:?} is none of a number, 0x and a number, an address, hex: and the bytes")),
    }
}

fn wrong_length(word: &str, has: usize, length: usize) -> String {
    format!("{word:?} has {has} bytes, and {length} are needed")
}

/// A key of this map. That of an lpm_trie may be a block of addresses: `10.0.0.0/8`.
pub fn key(word: &str, map: &MapSpec) -> Result<Vec<u8>, String> {
    let length = map.key_size as usize;
    match word.split_once('/') {
        Some((address, bits)) if map.kind == MapKind::LpmTrie => {
            let bits = bits.parse::<u32>().map_err(|_| format!("{word:?}: no length of a prefix"))?;
            let mut key = bits.to_ne_bytes().to_vec();
            key.extend(bytes(address, length - 4)?);
            Ok(key)
        }
        _ if map.kind == MapKind::LpmTrie && !word.starts_with("hex:") => {
            Err(format!("{word:?} is no prefix, such as 10.0.0.0/8"))
        }
        _ => bytes(word, length),
    }
}

/// A value of this map.
pub fn value(word: &str, map: &MapSpec) -> Result<Vec<u8>, String> {
    bytes(word, map.value_size as usize)
}

/// Two hexadecimal digits for each byte.
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// The bytes of such a text.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn map(kind: MapKind, key_size: u32) -> MapSpec {
        MapSpec {
            name: "map".into(),
            kind,
            key_size,
            value_size: 8,
            entries: 1,
            flags: 0,
            initial: Vec::new(),
            read_only: false,
            programs: Vec::new(),
            pinned: false,
        }
    }

    #[test]
    fn keys_and_values_are_numbers_addresses_prefixes_or_bytes() {
        let hash = map(MapKind::Hash, 4);
        assert_eq!(key("258", &hash).unwrap(), [2, 1, 0, 0]);
        assert_eq!(key("0x0102", &hash).unwrap(), [2, 1, 0, 0]);
        assert_eq!(key("10.1.2.3", &hash).unwrap(), [10, 1, 2, 3]);
        assert_eq!(key("hex:0a0b0c0D", &hash).unwrap(), [10, 11, 12, 13]);
        assert_eq!(value("1", &hash).unwrap(), [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(key("10.9.0.0/16", &map(MapKind::LpmTrie, 8)).unwrap(), [16, 0, 0, 0, 10, 9, 0, 0]);
        assert_eq!(key("2001:db8::/32", &map(MapKind::LpmTrie, 20)).unwrap()[..6], [32, 0, 0, 0, 0x20, 1]);
        for (word, why) in [
            ("x", "\"x\" is none of a number, 0x and a number, an address, hex: and the bytes"),
            ("4294967296", "\"4294967296\" has 5 bytes, and 4 are needed"),
            ("::1", "\"::1\" has 16 bytes, and 4 are needed"),
            ("hex:0a0", "\"hex:0a0\": two hexadecimal digits for each byte are needed"),
        ] {
            assert_eq!(key(word, &hash).unwrap_err(), why);
        }
        assert_eq!(key("7", &map(MapKind::LpmTrie, 8)).unwrap_err(), "\"7\" is no prefix, such as 10.0.0.0/8");
        assert_eq!(from_hex(&to_hex(&[0, 255, 16])).unwrap(), [0, 255, 16]);
    }
}

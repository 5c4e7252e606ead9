//! Addresses in shared memory: 16 bytes in network order, in four words. An IPv4 address stands as the IPv4-mapped
//! `::ffff:a.b.c.d` (RFC 4291 §2.5.5.2).

use core::net::Ipv6Addr;
use core::sync::atomic::{AtomicU32, Ordering};

/// The four words of an address.
pub fn words(address: Ipv6Addr) -> [u32; 4] {
    let o = address.octets();
    [0, 4, 8, 12].map(|i| u32::from_ne_bytes([o[i], o[i + 1], o[i + 2], o[i + 3]]))
}

/// The address that four words hold.
pub fn of_words(words: [u32; 4]) -> Ipv6Addr {
    let mut octets = [0; 16];
    for (place, word) in octets.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    Ipv6Addr::from_octets(octets)
}

/// Stores an address, word by word.
pub fn store(place: &[AtomicU32; 4], address: Ipv6Addr) {
    for (word, value) in place.iter().zip(words(address)) {
        word.store(value, Ordering::Relaxed);
    }
}

/// Loads an address, word by word. While the other side stores it, the result is a mixture of old and new.
pub fn load(place: &[AtomicU32; 4]) -> Ipv6Addr {
    of_words(place.each_ref().map(|word| word.load(Ordering::Relaxed)))
}

/// Is it "any" of either family?
pub fn is_any(address: Ipv6Addr) -> bool {
    address.to_canonical().is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_out_as_it_went_in_and_stands_in_network_order() {
        let address = Ipv6Addr::from_octets(core::array::from_fn(|at| at as u8 * 17));
        assert_eq!(words(address)[1].to_ne_bytes(), [0x44, 0x55, 0x66, 0x77]);
        let place = [const { AtomicU32::new(0) }; 4];
        assert_eq!(load(&place), Ipv6Addr::UNSPECIFIED);
        store(&place, address);
        assert_eq!((load(&place), of_words(words(address))), (address, address));
    }

    #[test]
    fn any_is_any_of_either_family() {
        let mapped = |octets: [u8; 4]| std::net::Ipv4Addr::from(octets).to_ipv6_mapped();
        assert!(is_any(Ipv6Addr::UNSPECIFIED) && is_any(mapped([0; 4])));
        assert!(!is_any(Ipv6Addr::LOCALHOST) && !is_any(mapped([127, 0, 0, 1])));
    }
}

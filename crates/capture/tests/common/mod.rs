//! What the tests of captures share.
#![allow(dead_code)]

use towpath_capture::Reader;
use towpath_capture::record::Header;

/// Takes all that is in a ring: headers, and what follows them.
pub fn records(reader: &mut Reader, ring: usize) -> Vec<(Header, Vec<u8>)> {
    let (mut all, mut to) = (Vec::new(), vec![0; 1 << 20]);
    while reader.take(ring, &mut to, |_, header, bytes| all.push((header, bytes.to_vec()))) > 0 {}
    all
}

//! Code in memory of another process's: it can be called and not written, and places come back.
#![allow(clippy::unwrap_used)]

use std::os::fd::{AsFd, AsRawFd};
use towpath_modules::code::{Area, Code, PLACE_BYTES, PLACES, Writer};

#[cfg(target_arch = "x86_64")]
#[test]
fn code_that_one_mapping_writes_runs_in_another_that_nobody_can_write() {
    let (mut writer, memory) = Writer::new().unwrap();
    let area = Area::map(memory.as_fd()).unwrap();
    let place = area.place().unwrap();
    // mov eax, 7; ret
    writer.write(place.number(), &[0xb8, 7, 0, 0, 0, 0xc3]).unwrap();
    let code = Code::at_place(place);
    let at = usize::try_from(code.at(0).unwrap()).unwrap();
    assert_eq!(code.at(PLACE_BYTES as u32), None);
    // SAFETY: the function was just written there.
    let seven: extern "C" fn() -> u32 = unsafe { std::mem::transmute(at) };
    assert_eq!(seven(), 7);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.lines().any(|line| line.contains("rwx")), "{maps}");
    let protect = |protection| {
        // SAFETY: the page is code that nobody runs meanwhile.
        unsafe { libc::mprotect((at & !4095) as *mut libc::c_void, 4096, protection) }
    };
    assert_eq!(protect(libc::PROT_READ | libc::PROT_WRITE), -1, "the mapping cannot become writable");
    let byte = [0u8; 1];
    // SAFETY: the byte is valid for reads.
    let written = unsafe { libc::pwrite(memory.as_raw_fd(), byte.as_ptr().cast(), 1, 0) };
    assert_eq!(written, -1, "nor can the file be written");
    assert_eq!(seven(), 7);
}

#[test]
fn places_are_as_many_as_there_are_and_come_back() {
    let (mut writer, memory) = Writer::new().unwrap();
    let area = Area::map(memory.as_fd()).unwrap();
    let mut places: Vec<_> = std::iter::from_fn(|| area.place()).collect();
    assert_eq!(places.len(), PLACES as usize);
    places.swap_remove(5);
    assert_eq!(area.place().map(|place| place.number()), Some(5));
    assert!(writer.write(PLACES, &[1]).is_err() && writer.write(0, &vec![0; PLACE_BYTES + 1]).is_err());
}

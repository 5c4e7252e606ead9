//! Unpacks a kernel's image. An emulated processor takes longer to unpack its kernel than to boot it, so the host does
//! that.

use super::elf;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// How images are packed (`scripts/extract-vmlinux` of Linux): first bytes, and the program that unpacks them.
const PACKERS: [(&[u8], &str); 4] =
    [(b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x1f\x8b", "gzip"), (b"\x02\x21\x4c\x18", "lz4")];

/// Writes the kernel in `image` to `to`. False if that fails, or if the kernel would not start unpacked; then the
/// image must do.
pub fn unpack(image: &Path, to: &Path) -> io::Result<bool> {
    let bytes = std::fs::read(image)?;
    let Some(payload) = payload(&bytes) else { return Ok(false) };
    let Some((_, packer)) = PACKERS.iter().find(|(magic, _)| payload.starts_with(magic)) else { return Ok(false) };
    let packed = to.with_extension("packed");
    std::fs::write(&packed, payload)?;
    let mut command = Command::new(packer);
    command.arg("-dc").stdin(File::open(&packed)?).stdout(File::create(to)?).stderr(Stdio::null());
    // The program may not be installed.
    let ran = command.status().is_ok_and(|status| status.success());
    std::fs::remove_file(&packed)?;
    Ok(ran && starts(&std::fs::read(to)?))
}

/// The packed kernel of an image (`Documentation/arch/x86/boot.rst` of Linux: `setup_sects`, `payload_offset`,
/// `payload_length`).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| image.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
    (image.get(0x202..0x206)? == b"HdrS").then_some(())?;
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let begin = ((sectors + 1) * 512).checked_add(word(0x248)?)?;
    // The last word is the unpacked length.
    let end = begin.checked_add(word(0x24c)?)?.checked_sub(4)?;
    image.get(begin..end)
}

/// True if the kernel has an entry point for starting it unpacked (PVH: a note of type 18 of "Xen").
fn starts(kernel: &[u8]) -> bool {
    let notes = elf::segments(kernel).unwrap_or_default().into_iter().filter(|segment| segment.kind == elf::NOTE);
    notes.map(|note| &kernel[note.offset..note.offset + note.size]).any(|notes| {
        // Length of the name, length of the description, type, name.
        notes.windows(16).step_by(4).any(|note| note[8..12] == [18, 0, 0, 0] && note[12..] == *b"Xen\0")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// An image whose payload is `packed`, with a header that says where it lies.
    fn image(packed: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 5 * 512 + 64];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&64u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(packed.len() as u32 + 4).to_le_bytes());
        image.extend_from_slice(packed);
        image.extend_from_slice(&[0; 4]);
        image
    }

    #[test]
    fn the_payload_of_an_image_is_found_and_one_that_lies_beyond_its_end_is_none() {
        let whole = image(b"packed");
        assert_eq!(payload(&whole), Some(&b"packed"[..]));
        assert_eq!(payload(&whole[..whole.len() - 5]), None);
        let mut far = whole.clone();
        far[0x248..0x24c].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(payload(&far), None);
        assert_eq!(payload(&[0; 4096]), None, "no image");
    }

    #[test]
    fn only_a_kernel_with_an_entry_of_its_own_starts_unpacked() {
        let mut kernel = vec![0; 64 + 56 + 20];
        kernel[..5].copy_from_slice(b"\x7fELF\x02");
        (kernel[32], kernel[54], kernel[56]) = (64, 56, 1);
        kernel[64] = 4;
        (kernel[64 + 8], kernel[64 + 32]) = (120, 20);
        assert!(!starts(&kernel));
        kernel[120..136].copy_from_slice(b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0");
        assert!(starts(&kernel));
        assert!(!starts(&kernel[..139]), "cut off");
    }
}

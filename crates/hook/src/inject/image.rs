//! Maps a program into this process's memory as the kernel would on `execve`. These are its segments, those of its
//! interpreter (musl's linker), and the first words on its stack.

use super::{memory, sites};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PAGE: u64 = 4096;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_GNU_STACK: u32 = 0x6474_e551;
const PF_X: u32 = 1;
const ET_EXEC: u16 = 2;
/// The longest chain of scripts that is followed.
const MAX_SCRIPTS: usize = 4;
/// Bytes of a script's first line that the kernel reads.
const LINE_BYTES: usize = 256;
/// Bytes of a program header.
const HEADER_BYTES: usize = 56;
/// The most program headers of a program.
const MAX_HEADERS: usize = 256;

/// A program in memory.
pub struct Image {
    /// Its entry point.
    pub entry: u64,
    /// Address of its program headers.
    headers: u64,
    count: u64,
    own_entry: u64,
    /// The address of its interpreter; 0 = it has none.
    interpreter: u64,
    /// Does it execute code on its stack?
    pub is_stack_executable: bool,
    /// The path that its `/proc/self/exe` shows.
    pub path: PathBuf,
    /// Its arguments, including `argv[0]`.
    pub arguments: Vec<OsString>,
}

impl Image {
    /// True if it has no interpreter.
    pub fn is_static(&self) -> bool {
        self.interpreter == 0
    }
}

type Result<T> = std::result::Result<T, String>;

/// Loads `path`, or the interpreter that it names if it is a script.
pub fn load(path: &Path, arguments: Vec<OsString>) -> Result<Image> {
    let (path, arguments) = follow(path, arguments)?;
    let part = Part::load(&path)?;
    let mut image = Image {
        entry: part.entry,
        headers: part.headers,
        count: part.count,
        own_entry: part.entry,
        interpreter: 0,
        is_stack_executable: part.is_stack_executable,
        path,
        arguments,
    };
    if let Some(interpreter) = part.interpreter {
        let linker = Part::load(&interpreter)?;
        image.entry = linker.entry;
        image.interpreter = linker.base;
    }
    Ok(image)
}

fn follow(path: &Path, mut arguments: Vec<OsString>) -> Result<(PathBuf, Vec<OsString>)> {
    let mut path = path.to_owned();
    for _ in 0..=MAX_SCRIPTS {
        let mut head = [0; LINE_BYTES];
        let count = open(&path)?.read_at(&mut head, 0).map_err(|error| format!("{}: {error}", path.display()))?;
        let Some(line) = head[..count].strip_prefix(b"#!") else { return Ok((path, arguments)) };
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
        let end = line.iter().position(|byte| b" \t".contains(byte)).unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        let mut with = vec![OsString::from_vec(name.to_vec())];
        if !rest.trim_ascii().is_empty() {
            with.push(OsString::from_vec(rest.trim_ascii().to_vec()));
        }
        with.push(path.into_os_string());
        with.extend(arguments.into_iter().skip(1));
        path = PathBuf::from(OsStr::from_bytes(name));
        arguments = with;
    }
    Err("too many interpreters".into())
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// One file's segments in memory.
struct Part {
    base: u64,
    entry: u64,
    headers: u64,
    count: u64,
    interpreter: Option<PathBuf>,
    is_stack_executable: bool,
}

struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    in_file: u64,
    in_memory: u64,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

fn segments(file: &File, header: &[u8; 64]) -> Result<Vec<Segment>> {
    let (offset, size) = (u64::from_le_bytes(field(header, 32)), u16::from_le_bytes(field(header, 54)));
    let count = usize::from(u16::from_le_bytes(field(header, 56)));
    if usize::from(size) != HEADER_BYTES || count == 0 || count > MAX_HEADERS {
        return Err("program headers of no known kind".into());
    }
    let mut table = vec![0; count * HEADER_BYTES];
    file.read_exact_at(&mut table, offset).map_err(|error| error.to_string())?;
    let segments = table.chunks_exact(HEADER_BYTES).map(|entry| Segment {
        kind: u32::from_le_bytes(field(entry, 0)),
        flags: u32::from_le_bytes(field(entry, 4)),
        offset: u64::from_le_bytes(field(entry, 8)),
        address: u64::from_le_bytes(field(entry, 16)),
        in_file: u64::from_le_bytes(field(entry, 32)),
        in_memory: u64::from_le_bytes(field(entry, 40)),
    });
    Ok(segments.collect())
}

impl Part {
    fn load(path: &Path) -> Result<Self> {
        let at = |error: String| format!("{}: {error}", path.display());
        let file = open(path)?;
        let mut header = [0; 64];
        file.read_exact_at(&mut header, 0).map_err(|error| at(error.to_string()))?;
        if header[..6] != *b"\x7fELF\x02\x01" {
            return Err(at("no 64-bit program".into()));
        }
        let segments = segments(&file, &header).map_err(at)?;
        let loaded = || segments.iter().filter(|segment| segment.kind == PT_LOAD && segment.in_memory > 0);
        let low = loaded().map(|segment| segment.address).min().ok_or_else(|| at("nothing to load".into()))?;
        let high = loaded().map(|segment| segment.address.saturating_add(segment.in_memory)).max().unwrap_or(low);
        let (low, high) = (low & !(PAGE - 1), high.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX));
        if high - low > 1 << 40 {
            return Err(at("segments that are too far apart".into()));
        }
        let fixed = u16::from_le_bytes(field(&header, 16)) == ET_EXEC;
        let (hint, flags) = if fixed { (low, libc::MAP_FIXED_NOREPLACE) } else { (0, 0) };
        let start = memory::map(hint, high - low, libc::PROT_NONE, flags).filter(|start| !fixed || *start == low);
        let start = start.ok_or_else(|| at("its addresses are taken".into()))?;
        let bias = start.wrapping_sub(low);
        for segment in loaded() {
            place(&file, segment, bias).map_err(at)?;
        }
        let offset = u64::from_le_bytes(field(&header, 32));
        let holds = |segment: &&Segment| segment.offset <= offset && offset < segment.offset + segment.in_file;
        let headers = loaded().find(holds).map_or(0, |segment| bias + segment.address + (offset - segment.offset));
        Ok(Self {
            base: bias,
            entry: bias.wrapping_add(u64::from_le_bytes(field(&header, 24))),
            headers,
            count: u16::from_le_bytes(field(&header, 56)).into(),
            interpreter: interpreter(&file, &segments),
            is_stack_executable: segments.iter().any(|one| one.kind == PT_GNU_STACK && one.flags & PF_X != 0),
        })
    }
}

fn interpreter(file: &File, segments: &[Segment]) -> Option<PathBuf> {
    let segment = segments.iter().find(|segment| segment.kind == PT_INTERP)?;
    let mut name = vec![0; segment.in_file.min(4096) as usize];
    file.read_exact_at(&mut name, segment.offset).ok()?;
    let name = name.split(|byte| *byte == 0).next()?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

/// Maps one segment over the reserved addresses.
fn place(file: &File, segment: &Segment, bias: u64) -> Result<()> {
    let bit = |flag: u32, protection: i32| if segment.flags & flag != 0 { protection } else { 0 };
    let protection = bit(4, libc::PROT_READ) | bit(2, libc::PROT_WRITE) | bit(1, libc::PROT_EXEC);
    let address = bias.wrapping_add(segment.address);
    let begin = address & !(PAGE - 1);
    let file_end = address + segment.in_file;
    let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let failed = || std::io::Error::last_os_error().to_string();
    let from_file = || {
        let (length, offset) = (file_end - begin, segment.offset - (address - begin));
        // SAFETY: the mapping lies inside the addresses that were reserved for this file.
        let at = unsafe {
            libc::mmap(begin as *mut _, length as usize, protection, fixed, file.as_raw_fd(), offset as libc::off_t)
        };
        if at == libc::MAP_FAILED { Err(failed()) } else { Ok(()) }
    };
    if segment.in_file > 0 {
        from_file()?;
    }
    let zero = if segment.in_file > 0 { file_end.next_multiple_of(PAGE) } else { begin };
    let end = (address + segment.in_memory).next_multiple_of(PAGE);
    if segment.in_memory > segment.in_file && segment.flags & 2 != 0 && zero > file_end {
        // SAFETY: the range is the rest of the file's last page, which is mapped writable.
        unsafe { core::ptr::write_bytes(file_end as *mut u8, 0, (zero - file_end) as usize) };
    }
    if end > zero {
        // SAFETY: the mapping lies inside the addresses that were reserved for this file.
        let at = unsafe {
            libc::mmap(zero as *mut _, (end - zero) as usize, protection, fixed | libc::MAP_ANONYMOUS, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return Err(failed());
        }
    }
    let is_code = segment.flags & 1 != 0 && segment.in_file > 0;
    if is_code && !sites::rewrite(address, segment.in_file as usize, protection) {
        from_file()?;
    }
    Ok(())
}

/// Lets the program execute code on its first stack, which the kernel has made for the loader, from the page with this
/// address down. The program's libc makes the stacks of its other threads.
pub fn make_stack_executable(address: u64) -> bool {
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | libc::PROT_GROWSDOWN;
    // SAFETY: the stack stays readable and writable.
    unsafe { libc::mprotect((address & !(PAGE - 1)) as *mut _, PAGE as usize, all) == 0 }
}

/// The first words of a program's stack, lowest first.
pub struct Stack {
    words: Vec<u64>,
    /// The strings to which the words point.
    _strings: Vec<CString>,
    _random: Box<[u8; 16]>,
}

impl Stack {
    /// Makes them for this image and environment. The auxiliary vector is this process's, with the program's own
    /// values.
    pub fn new(image: &Image, environment: &[CString], auxiliary: &[(u64, u64)]) -> Self {
        let clean = |text: &OsStr| CString::new(text.as_bytes()).unwrap_or_default();
        let mut strings: Vec<CString> = image.arguments.iter().map(|argument| clean(argument)).collect();
        let mut words = vec![strings.len() as u64];
        words.extend(strings.iter().map(|string| string.as_ptr() as u64));
        words.push(0);
        words.extend(environment.iter().map(|string| string.as_ptr() as u64));
        words.push(0);
        let name = clean(image.path.as_os_str());
        let mut random = Box::new([0; 16]);
        // SAFETY: `random` has room for 16 bytes. If the call fails they stay zero, as on kernels without a seed yet.
        unsafe { libc::getrandom(random.as_mut_ptr().cast(), 16, libc::GRND_NONBLOCK) };
        for (kind, value) in auxiliary {
            let value = match *kind {
                libc::AT_PHDR => image.headers,
                libc::AT_PHENT => HEADER_BYTES as u64,
                libc::AT_PHNUM => image.count,
                libc::AT_BASE => image.interpreter,
                libc::AT_ENTRY => image.own_entry,
                libc::AT_EXECFN => name.as_ptr() as u64,
                libc::AT_RANDOM => random.as_ptr() as u64,
                _ => *value,
            };
            words.extend([*kind, value]);
        }
        words.extend([libc::AT_NULL, 0]);
        strings.push(name);
        Self { words, _strings: strings, _random: random }
    }

    /// Copies the words below `top` and returns their address. The strings are never freed.
    ///
    /// # Safety
    /// The memory below `top` is large enough and unused.
    pub unsafe fn put(self, top: u64) -> u64 {
        let begin = (top - self.words.len() as u64 * 8) & !63;
        // SAFETY: the caller vouches for the room.
        unsafe { core::ptr::copy_nonoverlapping(self.words.as_ptr(), begin as *mut u64, self.words.len()) };
        core::mem::forget(self);
        begin
    }
}

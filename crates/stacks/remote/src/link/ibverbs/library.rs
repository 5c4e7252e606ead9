//! `libibverbs.so.1`, loaded when it is first needed. Towpath runs without it, and is built without its headers.

use super::abi::{CompChannel, Context, Cq, Device, Mr, Pd, PortAttr, Qp, QpAttr, QpInitAttr};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::sync::OnceLock;

/// Its name. The number is the version of its binary interface.
const NAME: &CStr = c"libibverbs.so.1";

macro_rules! library {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Its functions, without `ibv_`.
        pub struct Library {
            $(#[doc = concat!("`ibv_", stringify!($name), "`.")]
            pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn load() -> Option<Self> {
                // SAFETY: the name ends with a zero. Loading runs only that library's own initialisers.
                let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                if handle.is_null() {
                    return None;
                }
                Some(Self {
                    $($name: {
                        let name = concat!("ibv_", stringify!($name), "\0");
                        // SAFETY: the library is open and never closed, and the name ends with a zero.
                        let symbol = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
                        if symbol.is_null() {
                            return None;
                        }
                        // SAFETY: a function of this name has this type in the library's first interface and in all
                        // compatible ones.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(symbol) }
                    },)*
                })
            }
        }
    };
}

library! {
    get_device_list: fn(*mut c_int) -> *mut *mut Device;
    free_device_list: fn(*mut *mut Device);
    get_device_name: fn(*mut Device) -> *const c_char;
    open_device: fn(*mut Device) -> *mut Context;
    close_device: fn(*mut Context) -> c_int;
    query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    alloc_pd: fn(*mut Context) -> *mut Pd;
    dealloc_pd: fn(*mut Pd) -> c_int;
    reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr: fn(*mut Mr) -> c_int;
    create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq: fn(*mut Cq) -> c_int;
    get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events: fn(*mut Cq, c_uint);
    create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp: fn(*mut Qp) -> c_int;
    wc_status_str: fn(c_uint) -> *const c_char;
}

impl Library {
    /// The library, if this machine has it.
    pub fn get() -> io::Result<&'static Self> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        let missing = || {
            let name = NAME.to_string_lossy();
            io::Error::new(io::ErrorKind::NotFound, format!("RDMA needs {name}: apt-get install ibverbs-providers"))
        };
        LIBRARY.get_or_init(Self::load).as_ref().ok_or_else(missing)
    }
}

//! setsockopt and getsockopt.

use crate::calls::out_value;
use crate::constants::{SOL_SOCKET, SOL_TCP};
use crate::descriptors::DescriptorKind;
use crate::pending_call::{Answer, Outcome};
use crate::runner::Runner;
use crate::script::{Call, Value};
use towpath_tcp::flow::SocketOptions;
use towpath_tcp::slow::congestion::Algorithm;

const SO_REUSEADDR: i64 = 2;
const SO_ERROR: i64 = 4;
const SO_SNDBUF: i64 = 7;
const SO_RCVBUF: i64 = 8;
const SO_OOBINLINE: i64 = 10;
const SO_LINGER: i64 = 13;
const SO_REUSEPORT: i64 = 15;
const SOL_IP: i64 = 0;
const SO_KEEPALIVE: i64 = 9;
const SO_MAX_PACING_RATE: i64 = 47;
const IP_TOS: i64 = 1;
const IP_TTL: i64 = 2;
const TCP_NODELAY: i64 = 1;
const TCP_MAXSEG: i64 = 2;
const TCP_KEEPIDLE: i64 = 4;
const TCP_KEEPINTVL: i64 = 5;
const TCP_KEEPCNT: i64 = 6;
const TCP_SYNCNT: i64 = 7;
const TCP_LINGER2: i64 = 8;
const TCP_DEFER_ACCEPT: i64 = 9;
const TCP_CONGESTION: i64 = 13;
const TCP_USER_TIMEOUT: i64 = 18;
const TCP_CORK: i64 = 3;
const TCP_QUICKACK: i64 = 12;

impl Runner {
    pub(crate) fn set_option(&mut self, fd: i64, call: &Call) -> Outcome {
        let number = |i: usize| call.args.get(i).and_then(Value::number);
        let (Some(level), Some(option)) = (number(1), number(2)) else { return Err(unknown(call)) };
        let value = number(3);
        let on = value.is_some_and(|v| v != 0);
        let answer = match (level, option) {
            // The size of rings is fixed.
            (SOL_SOCKET, SO_REUSEADDR | SO_SNDBUF | SO_RCVBUF | SO_REUSEPORT | SO_OOBINLINE) => Ok(0),
            (SOL_SOCKET, SO_LINGER) => self.set_linger(fd, call)?,
            (SOL_TCP, TCP_NODELAY) => {
                self.tell(fd, |update| update.nodelay = on);
                self.with(fd, |d| d.nodelay = on)
            }
            (SOL_TCP, TCP_CORK) => {
                self.tell(fd, |update| update.cork = on);
                self.with(fd, |d| d.cork = on)
            }
            (SOL_TCP, TCP_QUICKACK) => {
                self.tell(fd, |update| update.quickack = on);
                Ok(0)
            }
            _ => {
                let mut options = self.descriptors.get(fd).map(|d| d.options).unwrap_or_default();
                set(&mut options, level, option, call.args.get(3)).ok_or_else(|| unknown(call))?;
                if let Some(DescriptorKind::Stream(id) | DescriptorKind::Listener(id)) =
                    self.descriptors.get(fd).map(|d| d.kind)
                {
                    self.node.set_options(id, options);
                }
                self.with(fd, |d| d.options = options)
            }
        };
        Ok(Some(Ok(answer)))
    }

    fn set_linger(&mut self, fd: i64, call: &Call) -> Result<Answer, String> {
        let linger = call.args.get(3).ok_or("this SO_LINGER")?;
        let member = |name: &str| linger.member(name).and_then(Value::number);
        let (on, seconds) = (member("onoff").ok_or("this SO_LINGER")? != 0, member("linger").unwrap_or(0));
        if on && seconds != 0 {
            return Err("a close() that lingers".into());
        }
        Ok(self.with(fd, |d| d.abort = on))
    }

    fn tell(&mut self, fd: i64, change: impl FnOnce(&mut towpath_tcp::messages::AppUpdate)) {
        if let Some(id) = self.stream(fd) {
            self.node.tell(id, change);
        }
    }

    pub(crate) fn get_option(&mut self, fd: i64, call: &Call) -> Outcome {
        let number = |i: usize| call.args.get(i).and_then(Value::number);
        let descriptor = self.descriptors.get(fd).cloned();
        let value = match (number(1), number(2)) {
            (Some(SOL_SOCKET), Some(SO_ERROR)) => i64::from(self.take_error(fd).unwrap_or(0)),
            (Some(SOL_TCP), Some(TCP_NODELAY)) => i64::from(descriptor.is_some_and(|d| d.nodelay)),
            (Some(SOL_TCP), Some(TCP_CORK)) => i64::from(descriptor.is_some_and(|d| d.cork)),
            _ => return Err(unknown(call)),
        };
        Ok(Some(out_value(call.args.get(3), value)))
    }
}

/// Sets an option that the slow path handles; `None` = another option.
fn set(options: &mut SocketOptions, level: i64, option: i64, value: Option<&Value>) -> Option<()> {
    if (level, option) == (SOL_TCP, TCP_CONGESTION) {
        let Some(Value::Text(name)) = value else { return None };
        options.congestion = Algorithm::parse(name)?.id();
        return Some(());
    }
    let n = value?.number()?;
    match (level, option) {
        (SOL_SOCKET, SO_KEEPALIVE) => options.keepalive = n != 0,
        (SOL_SOCKET, SO_MAX_PACING_RATE) => options.max_pacing = n as u64,
        (SOL_TCP, TCP_MAXSEG) => options.max_segment = n as u16,
        (SOL_TCP, TCP_KEEPIDLE) => options.keep_idle_s = n as u32,
        (SOL_TCP, TCP_KEEPINTVL) => options.keep_interval_s = n as u32,
        (SOL_TCP, TCP_KEEPCNT) => options.keep_count = n as u32,
        (SOL_TCP, TCP_SYNCNT) => options.syn_retries = n as u8,
        (SOL_TCP, TCP_LINGER2) => options.linger2_s = n as i32,
        (SOL_TCP, TCP_DEFER_ACCEPT) => options.defer_accept_s = n as u32,
        (SOL_TCP, TCP_USER_TIMEOUT) => options.user_timeout_ms = n as u32,
        (SOL_IP, IP_TOS) => options.tos = n as u8,
        (SOL_IP, IP_TTL) => options.ttl = n as u8,
        _ => return None,
    }
    Some(())
}

fn unknown(call: &Call) -> String {
    let name = |i: usize| match call.args.get(i) {
        Some(Value::Name(name)) => name.clone(),
        Some(Value::Number(n)) => n.to_string(),
        _ => "?".into(),
    };
    format!("{}({}, {})", call.name, name(1), name(2))
}

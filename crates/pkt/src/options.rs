//! setsockopt and getsockopt.

use crate::calls::{Answer, out_value};
use crate::constants::{SOL_SOCKET, SOL_TCP};
use crate::runner::Runner;
use crate::script::{Call, Value};

type Outcome = Result<Option<Result<Answer, String>>, String>;

const SO_REUSEADDR: i64 = 2;
const SO_ERROR: i64 = 4;
const SO_SNDBUF: i64 = 7;
const SO_RCVBUF: i64 = 8;
const SO_OOBINLINE: i64 = 10;
const SO_LINGER: i64 = 13;
const SO_REUSEPORT: i64 = 15;
const TCP_NODELAY: i64 = 1;
const TCP_CORK: i64 = 3;
const TCP_QUICKACK: i64 = 12;

impl Runner {
    pub(crate) fn set_option(&mut self, fd: i64, call: &Call) -> Outcome {
        let number = |i: usize| call.args.get(i).and_then(Value::number);
        let (Some(level), Some(option)) = (number(1), number(2)) else { return Err(unknown(call)) };
        let value = number(3);
        let on = value.is_some_and(|v| v != 0);
        let answer = match (level, option) {
            // Rings have the size that they have.
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
            _ => return Err(unknown(call)),
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

fn unknown(call: &Call) -> String {
    let name = |i: usize| match call.args.get(i) {
        Some(Value::Name(name)) => name.clone(),
        Some(Value::Number(n)) => n.to_string(),
        _ => "?".into(),
    };
    format!("{}({}, {})", call.name, name(1), name(2))
}

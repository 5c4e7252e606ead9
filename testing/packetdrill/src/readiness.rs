//! poll and epoll.

use crate::constants::{self as c, EBADF, EINVAL};
use crate::descriptors::DescriptorKind;
use crate::pending_call::{Outcome, Progress};
use crate::runner::Runner;
use crate::script::{Call, Value};
use towpath_sim::Phase;

impl Runner {
    /// The events that `poll` reports for a descriptor.
    fn events(&self, fd: i64) -> Option<i64> {
        let descriptor = self.descriptors.get(fd)?;
        Some(match descriptor.kind {
            DescriptorKind::Fresh | DescriptorKind::Epoll => c::POLLOUT | c::POLLHUP,
            DescriptorKind::Listener(id) if self.node.acceptable(id) > 0 => c::POLLIN,
            DescriptorKind::Listener(_) => 0,
            DescriptorKind::Stream(id) => {
                let (update, view) = self.node.words(id);
                let error = if descriptor.told { 0 } else { c::POLLERR };
                match self.node.phase(id) {
                    Phase::Connecting | Phase::Embryo | Phase::Listening => 0,
                    Phase::Failed(_) => c::POLLIN | c::POLLOUT | c::POLLHUP | c::POLLRDHUP | error,
                    Phase::Open | Phase::Gone => {
                        let over = view.errno != 0 || (view.eof && (view.tx_closed || update.shut_wr));
                        let readable = view.rx_tail != update.rx_head || view.eof || update.shut_rd || over;
                        let room = update.tx_tail.wrapping_sub(view.tx_head) < self.settings.node.rings.0 * 2 / 3;
                        let urgent = view.urgent.is_some_and(|at| at.wrapping_sub(update.rx_head) as i32 >= 0);
                        let bits = [
                            (readable, c::POLLIN),
                            (view.eof || update.shut_rd || over, c::POLLRDHUP),
                            (room || over || view.tx_closed, c::POLLOUT),
                            (over, c::POLLHUP),
                            (view.errno != 0, error),
                            (urgent, c::POLLPRI),
                        ];
                        bits.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, bit)| all | bit)
                    }
                }
            }
        })
    }

    /// Has a call with a time limit of `ms` (negative = none) run out?
    fn timed_out(&self, ms: i64, progress: &mut Progress) -> bool {
        let since = progress.since(self.now);
        ms >= 0 && self.now.since(since) >= ms as u64 * 1000
    }

    pub(crate) fn poll(&mut self, call: &Call, progress: &mut Progress) -> Outcome {
        let (Some(Value::List(list)), Some(ms)) = (call.args.first(), call.args.get(2).and_then(Value::number)) else {
            return Err("this poll()".into());
        };
        let (mut ready, mut wrong) = (0, None);
        for entry in list {
            let field = |name: &str| entry.member(name).and_then(Value::number);
            let (Some(fd), Some(wanted)) = (field("fd"), field("events")) else { return Err("this pollfd".into()) };
            let events = self.events(fd).map_or(0x20, |e| e & (wanted | c::POLLERR | c::POLLHUP));
            ready += i64::from(events != 0);
            if let Some(expected) = field("revents")
                && expected != events
            {
                wrong = Some(format!("descriptor {fd}: revents are {events:#x}, expected {expected:#x}"));
            }
        }
        if ready == 0 && !self.timed_out(ms, progress) {
            return Ok(None);
        }
        Ok(Some(wrong.map_or(Ok(Ok(ready)), Err)))
    }

    pub(crate) fn epoll_ctl(&mut self, epfd: i64, call: &Call) -> Outcome {
        let number = |i: usize| call.args.get(i).and_then(Value::number);
        let (Some(operation), Some(fd)) = (number(1), number(2)) else { return Err("this epoll_ctl()".into()) };
        let field = |name: &str| call.args.get(3).and_then(|e| e.member(name)).and_then(Value::number);
        let events = field("events").unwrap_or(0);
        // The socket library implements edge-triggered, one-shot and exclusive waiting, which are not tested here.
        if operation != 2 && events & !0x201f != 0 {
            return Err(format!("epoll events {events:#x}"));
        }
        let data = field("fd").or_else(|| field("u32")).unwrap_or(fd);
        let Some(epoll) = self.descriptors.get_mut(epfd) else { return Ok(Some(Ok(Err(EBADF)))) };
        if epoll.kind != DescriptorKind::Epoll {
            return Ok(Some(Ok(Err(EINVAL))));
        }
        epoll.interest.retain(|(known, _, _)| *known != fd);
        if operation != 2 {
            epoll.interest.push((fd, events, data));
        }
        Ok(Some(Ok(Ok(0))))
    }

    pub(crate) fn epoll_wait(&mut self, epfd: i64, call: &Call, progress: &mut Progress) -> Outcome {
        let interest = self.descriptors.get(epfd).map(|d| d.interest.clone()).unwrap_or_default();
        let always = c::POLLERR | c::POLLHUP;
        let ready: Vec<(i64, i64)> = interest
            .iter()
            .filter_map(|(fd, wanted, data)| Some((self.events(*fd)? & (wanted | always), *data)))
            .filter(|(events, _)| *events != 0)
            .collect();
        let ms = call.args.get(3).and_then(Value::number).ok_or("this epoll_wait()")?;
        if ready.is_empty() && !self.timed_out(ms, progress) {
            return Ok(None);
        }
        let shown = match call.args.get(1) {
            Some(Value::List(list)) => list.clone(),
            Some(one @ Value::Struct(_)) => vec![one.clone()],
            _ => Vec::new(),
        };
        for (entry, (events, _)) in shown.iter().zip(&ready) {
            if let Some(expected) = entry.member("events").and_then(Value::number)
                && expected != *events
            {
                return Ok(Some(Err(format!("events are {events:#x}, expected {expected:#x}"))));
            }
        }
        Ok(Some(Ok(Ok(ready.len() as i64))))
    }
}

//! The network namespaces of the configuration's other stacks, as the kernel names them. They come and go while the service
//! runs. A cookie that nobody knows may be that of a new one, so the kernel is asked again.

use crate::config::{Config, StackKind};
use crate::namespace_cookies::{Found, Names};
use crate::policy::Namespaces;
use crate::privileged;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For as long the kernel is not asked again: clients decide how many cookies nobody knows. A library asks less often.
const ASKED_FOR: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Debug, Default)]
pub struct KnownNamespaces {
    joinable: Namespaces,
    names: Names,
    known: Mutex<Known>,
}

/// The kernel was asked just now, and nobody knows whether the namespace has come since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedJustNow;

/// What the kernel has said.
#[derive(Debug, Default)]
struct Known {
    /// By their places in the names.
    found: Vec<Found>,
    asked: Option<Instant>,
}

impl KnownNamespaces {
    /// Of this configuration. Those that are there now are known at once.
    pub fn of(config: &Config) -> Self {
        let this = Self { joinable: config.namespaces(), names: names_of(config), known: Mutex::default() };
        let _ = this.ask_again(Instant::now(), &privileged::namespaces);
        let known = this.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, found) in known.found.iter().enumerate() {
            let Some(number) = this.names.stack(place).filter(|_| this.names.is_bound(place)) else { continue };
            let stack = config.stacks.keys().nth(number);
            match found {
                Found::Cookie(_) => {}
                Found::Gone => {
                    tracing::info!(stack, "its network namespace is not there yet; it is served when it comes")
                }
                Found::Unknown => {
                    tracing::warn!(stack, "its network namespace cannot be entered; none of its programs is served")
                }
            }
        }
        drop(known);
        this
    }

    /// The names of those that rules on joins can be about.
    pub fn names(&self) -> &Namespaces {
        &self.joinable
    }

    /// Is any of the stacks bound to a namespace, which may be there or not?
    pub fn have_stacks(&self) -> bool {
        self.names.have_stacks()
    }

    /// The number of the first fast stack that serves the namespace with this cookie.
    pub fn stack_of(&self, cookie: u64) -> Result<Option<usize>, AskedJustNow> {
        self.find(cookie, |place| self.names.stack(place))
    }

    /// Place and name of the namespace with this cookie, if rules on joins can be about it.
    pub fn of_cookie(&self, cookie: u64) -> Option<(u32, &str)> {
        let place = self.find(cookie, |place| self.names.other(place)).ok()??;
        Some((u32::try_from(place).ok()?, &self.joinable.others.get(place)?.name))
    }

    fn find(&self, cookie: u64, of: impl Fn(usize) -> Option<usize>) -> Result<Option<usize>, AskedJustNow> {
        self.find_at(cookie, of, Instant::now(), &privileged::namespaces)
    }

    fn find_at(
        &self,
        cookie: u64,
        of: impl Fn(usize) -> Option<usize>,
        now: Instant,
        ask: &dyn Fn(&Names) -> io::Result<Vec<Found>>,
    ) -> Result<Option<usize>, AskedJustNow> {
        let look = || {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let with = |(place, found): (usize, &Found)| (*found == Found::Cookie(cookie)).then(|| of(place)).flatten();
            known.found.iter().enumerate().find_map(with)
        };
        if let Some(known) = look() {
            return Ok(Some(known));
        }
        self.ask_again(now, ask)?;
        Ok(look())
    }

    /// Asks the kernel, unless it was asked just now.
    fn ask_again(&self, now: Instant, ask: &dyn Fn(&Names) -> io::Result<Vec<Found>>) -> Result<(), AskedJustNow> {
        // A configuration without other stacks has nothing to ask for.
        if self.names.count() <= 1 {
            return Ok(());
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.asked.is_some_and(|asked| now.saturating_duration_since(asked) < ASKED_FOR) {
            return Err(AskedJustNow);
        }
        known.asked = Some(now);
        match ask(&self.names) {
            Ok(found) if found.len() == self.names.count() => known.found = found,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "network namespaces of other stacks cannot be asked for");
            }
        }
        Ok(())
    }
}

/// All network namespaces that a configuration names. Only a fast stack is bound to one.
pub fn names_of(config: &Config) -> Names {
    let stack = |table: &Config| table.netns.clone().filter(|_| table.stack == StackKind::Fast);
    let others = config.namespaces().others.into_iter().map(|other| other.netns);
    Names::new(config.netns.clone(), config.stacks.values().map(stack).collect(), others.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::cell::Cell;
    use std::path::Path;

    #[test]
    fn a_namespace_that_comes_later_or_is_made_anew_is_found_by_its_new_cookie() {
        let text = "[stacks.blue]\nnetns = \"/nonexistent/blue\"\n[stacks.red]\nnetns = \"/nonexistent/red\"\n";
        let config = Config::parse(Path::new("towpath.toml"), text).unwrap();
        let known = KnownNamespaces::of(&config);
        assert!(known.have_stacks());
        let (reds, asked, start) = (Cell::new(Found::Gone), Cell::new(0), Instant::now());
        let ask = |names: &Names| {
            asked.set(asked.get() + 1);
            let others = [Found::Gone, reds.get()];
            Ok([&[Found::Cookie(1)][..], &others, &others].concat()[..names.count()].to_vec())
        };
        let just_now = Err(AskedJustNow);
        let at = |cookie, ms| {
            let now = start + Duration::from_millis(ms);
            let stack = known.find_at(cookie, |place| known.names.stack(place), now, &ask);
            (stack, known.find_at(cookie, |place| known.names.other(place), now, &ask))
        };
        assert_eq!((at(77, 1000), asked.get()), ((Ok(None), just_now), 1), "it is not there, and is asked for once");
        reds.set(Found::Cookie(77));
        assert_eq!(at(77, 1100), (just_now, just_now), "it was asked for just now");
        assert_eq!((at(77, 1200), asked.get()), ((Ok(Some(1)), Ok(Some(1))), 2), "it has come");
        assert_eq!((at(77, 9000), asked.get()), ((Ok(Some(1)), Ok(Some(1))), 2), "one that is known is not asked for");
        reds.set(Found::Cookie(78));
        assert_eq!((at(78, 9000), asked.get()), ((Ok(Some(1)), Ok(Some(1))), 3), "it was made anew");
        assert_eq!(at(77, 9100), (just_now, just_now), "the old one has the name no more");
        assert_eq!(at(77, 9300), (Ok(None), just_now), "that is certain now");
        assert_eq!(at(1, 9900), (Ok(None), just_now), "the own one is nobody else's");
    }

    #[test]
    fn without_other_stacks_nobody_is_asked() {
        let known = KnownNamespaces::default();
        let ask = |_: &Names| -> io::Result<Vec<Found>> { panic!("asked") };
        assert_eq!(known.find_at(7, Some, Instant::now(), &ask), Ok(None));
    }
}

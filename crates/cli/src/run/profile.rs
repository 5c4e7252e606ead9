//! `towpath run --profile`: what is known of a program, and which settings follow from it.
//!
//! A setting has its reason beside it. Nothing is called measured but what docs/performance.md has. Where nothing is known to beat
//! the defaults, a profile sets nothing and says so.

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

/// What `--profile` is given to show all of them.
const LIST: &str = "list";

/// A program's profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    name: &'static str,
    /// The file name of its program.
    program: &'static str,
    /// Why its connections are measured both ways (`--auto`), if they are.
    pub auto: Option<&'static str>,
    /// What was measured with the defaults, and what else may be set by hand.
    known: &'static [&'static str],
}

/// There is nothing that says that the program gains.
const NO_FIGURE: &str =
    "no figure of it is recorded, so its connections are measured here, and what does not gain is left to the kernel";

const PROFILES: [Profile; 5] = [
    Profile {
        name: "redis",
        program: "redis-server",
        auto: None,
        known: &[
            "measured with the defaults, beside Linux: 1.07 times the GETs over a veth (50 connections), 13.4 times between two programs of one host",
            "no setting was measured to beat the defaults",
        ],
    },
    Profile {
        name: "nginx",
        program: "nginx",
        auto: None,
        known: &[
            "measured with the defaults, beside Linux: 6.01 times the requests/s between two programs of one host (wrk, 32 kept connections)",
            "connections for one request each have 0.80 to 1.07 over a veth: keep them open (`keepalive`), also to what is behind it",
            "no setting was measured to beat the defaults",
        ],
    },
    Profile {
        name: "haproxy",
        program: "haproxy",
        auto: Some(NO_FIGURE),
        known: &[
            "by hand: --splice PORTS for those of its ports that are in `mode tcp`. A proxy whose connections are handed over so was measured: 7.56 times the \
             bytes/s, and 0.009 of the CPU time per byte. A profile cannot know the ports, and others must not be named",
        ],
    },
    Profile {
        name: "memcached",
        program: "memcached",
        auto: None,
        known: &[
            "measured with the defaults, beside Linux: 13.6 times the GETs between two programs of one host (50 connections)",
            "no setting was measured to beat the defaults",
        ],
    },
    Profile {
        name: "postgresql",
        program: "postgres",
        auto: Some(NO_FIGURE),
        known: &[
            "connections for few requests each gain least (0.80 to 1.07 over a veth): a pool in front of it keeps them open",
        ],
    },
];

/// What `--profile` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Show all.
    List,
    /// Take this one.
    Of(Profile),
}

impl std::str::FromStr for Choice {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        if name == LIST {
            return Ok(Self::List);
        }
        let found = PROFILES.into_iter().find(|profile| profile.name == name).map(Self::Of);
        found.ok_or_else(|| {
            let names = PROFILES.map(|profile| profile.name).join(", ");
            format!("there is no profile {name:?}; write {names}, or {LIST} to see what they set and why")
        })
    }
}

impl Profile {
    /// What it sets, and why.
    pub fn words(&self) -> String {
        let set = match self.auto {
            Some(why) => format!("sets --auto (not measured): {why}\n"),
            None => "sets nothing\n".to_owned(),
        };
        self.known.iter().fold(set, |mut words, known| {
            let _ = writeln!(words, "  {known}");
            words
        })
    }
}

/// What is known of the program of this path.
pub fn known_of(program: &OsStr) -> Option<&'static [&'static str]> {
    let name = Path::new(program).file_name()?;
    PROFILES.into_iter().find(|profile| name == profile.program).map(|profile| profile.known)
}

/// All of them, for people.
pub fn list() -> String {
    let mut out = String::new();
    for profile in PROFILES {
        let _ = write!(out, "{:<11} {}", profile.name, profile.words());
    }
    out + "Measured figures: docs/performance.md, with the machine and the method. They hold for that machine.\n"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_profile_sets_nothing_or_says_why() {
        for profile in PROFILES {
            assert_eq!(profile.name.parse(), Ok(Choice::Of(profile)));
            let words = profile.words();
            match profile.auto {
                Some(why) => assert!(words.starts_with("sets --auto (not measured)") && words.contains(why)),
                None => assert!(words.starts_with("sets nothing\n") && words.contains("no setting was measured")),
            }
            assert!(list().contains(&format!("{:<11} {words}", profile.name)));
        }
        assert_eq!(known_of("/usr/sbin/nginx".as_ref()), Some(PROFILES[1].known));
        assert_eq!(known_of("/usr/bin/true".as_ref()), None);
        let wrong = "apache".parse::<Choice>().unwrap_err();
        assert!(wrong.contains("write redis, nginx, haproxy, memcached, postgresql, or list"), "{wrong}");
    }

    /// What is called measured stands in the page of all figures.
    #[test]
    fn figures_are_those_that_are_recorded() {
        let page = include_str!("../../../../docs/performance.md");
        let has = |row: &str, ratio: &str| {
            let line =
                page.lines().find(|line| line.starts_with(&format!("| {row}"))).unwrap_or_else(|| panic!("{row}"));
            assert!(line.contains(&format!("| {ratio}x (")), "{row}: {line}");
            ratio.to_owned()
        };
        let all = list();
        for (row, ratio) in [
            ("redis GET, 50 connections: requests/s", "1.07"),
            ("redis GET, 50 connections, direct", "13.4"),
            ("nginx and wrk, 32 kept connections, direct", "6.01"),
            ("memcached GET, 50 connections, direct", "13.6"),
            ("a proxy that hands its connections over: bytes/s", "7.56"),
            ("a proxy that hands its connections over: its side's CPU per byte", "0.009"),
            ("one request per connection, one after the other", "0.80"),
            ("one request per connection, 32 at a time", "1.07"),
        ] {
            assert!(all.contains(&has(row, ratio)), "{row}");
        }
    }
}

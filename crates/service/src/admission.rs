//! The users that the service admits.

use nix::unistd::{Gid, Group, Uid, User};
use serde::de::{self, Deserialize, Deserializer};
use std::ffi::CString;
use std::fmt;
use std::str::FromStr;

/// One entry of the configuration's `admit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admit {
    /// `"user:alice"`
    User(String),
    /// `"group:web"`: users with this primary or supplementary group
    Group(String),
    /// `"uid:1000"`
    Uid(u32),
    /// `"all"`
    All,
}

impl FromStr for Admit {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let unknown =
            || format!("{text:?} names nobody; write \"user:alice\", \"group:alice\", \"uid:1000\" or \"all\"");
        match text.split_once(':') {
            Some(("user", name)) if !name.is_empty() => Ok(Self::User(name.into())),
            Some(("group", name)) if !name.is_empty() => Ok(Self::Group(name.into())),
            Some(("uid", number)) => number.parse().map(Self::Uid).map_err(|_| unknown()),
            None if text == "all" => Ok(Self::All),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Admit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Uid(uid) => write!(f, "uid:{uid}"),
            Self::All => f.write_str("all"),
        }
    }
}

impl<'de> Deserialize<'de> for Admit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// The key `admit` with every name resolved.
#[derive(Clone, Debug)]
pub struct Admission {
    own: u32,
    /// The only user who may have clients.
    only: Option<u32>,
    everybody: bool,
    uids: Vec<u32>,
    groups: Vec<(String, u32)>,
}

/// A name in `admit` that this machine does not know.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("admit: {}", self.reason())]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    database: &'static str,
}

impl UnknownName {
    /// The error without the key.
    pub fn reason(&self) -> String {
        let Self { kind, name, database } = self;
        format!("there is no {kind} {name:?} on this machine (see `getent {database}`)")
    }
}

impl Admission {
    /// Resolves the names. `own` is the service's own user, which is always admitted, as is root.
    pub fn new(own: u32, admit: &[Admit]) -> Result<Self, UnknownName> {
        let mut admission = Self { own, only: None, everybody: false, uids: Vec::new(), groups: Vec::new() };
        for entry in admit {
            match entry {
                Admit::All => admission.everybody = true,
                Admit::Uid(uid) => admission.uids.push(*uid),
                Admit::User(name) => match User::from_name(name) {
                    Ok(Some(user)) => admission.uids.push(user.uid.as_raw()),
                    _ => return Err(UnknownName { kind: "user", name: name.clone(), database: "passwd" }),
                },
                Admit::Group(name) => match Group::from_name(name) {
                    Ok(Some(group)) => admission.groups.push((name.clone(), group.gid.as_raw())),
                    _ => return Err(UnknownName { kind: "group", name: name.clone(), database: "group" }),
                },
            }
        }
        Ok(admission)
    }

    /// Does it admit other users than the service's own and root? Then the sockets must be open to all.
    pub fn opens_to_others(&self) -> bool {
        self.everybody || !self.uids.is_empty() || !self.groups.is_empty()
    }

    /// May this user, with this primary group, use the service? On refusal: the reason, for the log.
    pub fn check(&self, uid: u32, gid: u32) -> Result<(), String> {
        if self.everybody || uid == self.own || uid == 0 || self.uids.contains(&uid) {
            return Ok(());
        }
        if self.groups.iter().any(|(_, group)| *group == gid) {
            return Ok(());
        }
        if !self.groups.is_empty() && self.groups.iter().any(|(_, group)| groups_of(uid, gid).contains(group)) {
            return Ok(());
        }
        Err(format!(
            "uid {uid} is neither the service's user (uid {}) nor admitted; add \"uid:{uid}\" to `admit`",
            self.own
        ))
    }

    /// All clients of the stack share one memory, so they must belong to one user: the one that `admit` names, or the
    /// service's own. False: `admit` names others, who will be refused.
    pub fn restrict_clients_to_one(&mut self) -> bool {
        let named = match self.uids[..] {
            [uid] if !self.everybody && self.groups.is_empty() => Some(uid),
            _ => None,
        };
        self.only = Some(named.unwrap_or(self.own));
        named.is_some() || !self.opens_to_others()
    }

    /// May this user, with this primary group, have clients? On refusal: the reason.
    pub fn check_client(&self, uid: u32, gid: u32) -> Result<(), String> {
        self.check(uid, gid)?;
        match self.only.filter(|only| *only != uid) {
            None => Ok(()),
            Some(only) => Err(format!(
                "all programs of a guest share one memory, and this one's are uid {only}'s; start another guest for \
                 uid {uid} (`towpath kernel-stack --uml --name NAME --admit uid:{uid}`)"
            )),
        }
    }

    /// May this user see and do everything on the control socket?
    pub fn is_operator(&self, uid: u32) -> bool {
        uid == self.own || uid == 0
    }
}

/// The user's groups according to the name service, or only the primary one if it does not know the user.
fn groups_of(uid: u32, gid: u32) -> Vec<u32> {
    let known = || {
        let user = User::from_uid(Uid::from_raw(uid)).ok()??;
        let name = CString::new(user.name).ok()?;
        nix::unistd::getgrouplist(&name, Gid::from_raw(gid)).ok()
    };
    known().map_or_else(|| vec![gid], |groups| groups.into_iter().map(Gid::as_raw).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn own_user_and_root_always() {
        let admission = Admission::new(1000, &[]).unwrap();
        assert!(admission.check(1000, 1000).is_ok());
        assert!(admission.check(0, 0).is_ok());
        assert!(!admission.opens_to_others());
        let why = admission.check(1001, 1000).unwrap_err();
        assert_eq!(why, "uid 1001 is neither the service's user (uid 1000) nor admitted; add \"uid:1001\" to `admit`");
        assert!(admission.is_operator(0) && admission.is_operator(1000) && !admission.is_operator(1001));
    }

    #[test]
    fn by_uid_and_all() {
        let admission = Admission::new(0, &["uid:1001".parse().unwrap()]).unwrap();
        assert!(admission.check(1001, 5).is_ok());
        assert!(admission.check(1002, 5).is_err());
        assert!(admission.opens_to_others());
        let admission = Admission::new(0, &[Admit::All]).unwrap();
        assert!(admission.check(1002, 5).is_ok());
        assert!(!admission.is_operator(1002));
    }

    #[test]
    fn by_user_and_group_name() {
        let admission = Admission::new(1000, &["user:daemon".parse().unwrap()]).unwrap();
        let daemon = User::from_name("daemon").unwrap().unwrap();
        assert!(admission.check(daemon.uid.as_raw(), 99).is_ok());
        let group = Group::from_name("daemon").unwrap().unwrap();
        let admission = Admission::new(1000, &["group:daemon".parse().unwrap()]).unwrap();
        assert!(admission.check(54_321, group.gid.as_raw()).is_ok(), "primary group");
        assert!(admission.check(54_321, 54_321).is_err());
    }

    #[test]
    fn clients_that_share_one_memory_belong_to_one_user() {
        let of = |admit: &[&str]| {
            let admit: Vec<Admit> = admit.iter().map(|entry| entry.parse().unwrap()).collect();
            let mut admission = Admission::new(1000, &admit).unwrap();
            let whole = admission.restrict_clients_to_one();
            let good = [0, 1000, 1001, 1002].into_iter().filter(|uid| admission.check_client(*uid, 7).is_ok());
            (whole, good.collect::<Vec<u32>>())
        };
        assert_eq!(of(&[]), (true, vec![1000]), "not even root");
        assert_eq!(of(&["uid:1001"]), (true, vec![1001]));
        assert_eq!(of(&["user:daemon"]), (true, vec![]));
        assert_eq!(of(&["uid:1001", "uid:1002"]), (false, vec![1000]));
        assert_eq!(of(&["all"]), (false, vec![1000]));
        assert_eq!(of(&["uid:1001", "group:daemon"]), (false, vec![1000]));
        let mut admission = Admission::new(1000, &[Admit::All]).unwrap();
        admission.restrict_clients_to_one();
        assert!(admission.check(1001, 7).is_ok(), "anybody may ask for the status");
        let why = admission.check_client(1001, 7).unwrap_err();
        assert!(why.contains("share one memory") && why.contains("uid 1000's") && why.contains("--admit uid:1001"));
    }

    #[test]
    fn unknown_names_are_refused_at_start() {
        let error = Admission::new(0, &["user:nobody-of-that-name".parse().unwrap()]).unwrap_err().to_string();
        assert_eq!(error, "admit: there is no user \"nobody-of-that-name\" on this machine (see `getent passwd`)");
        let error = Admission::new(0, &["group:no-such-group".parse().unwrap()]).unwrap_err().to_string();
        assert_eq!(error, "admit: there is no group \"no-such-group\" on this machine (see `getent group`)");
    }
}

//! Whom a rule is about.

use super::identity::Identity;
use std::fmt;

/// A user or a group: as it was written, and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// As written.
    pub text: String,
    /// Its number.
    pub number: u32,
}

/// Everything that is said must be so; nothing said = everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Effective user.
    pub user: Option<Named>,
    /// Primary or supplementary group.
    pub group: Option<Named>,
    /// A path, or the last part of one.
    pub program: Option<String>,
    /// A control group, with all below it.
    pub cgroup: Option<String>,
}

impl Who {
    /// Is this process meant? `unknown`: what to take it for where its program or control group cannot be read. A process can hide
    /// its executable from a service without privileges, so what denies or limits takes the unknown for meant.
    pub fn matches(&self, identity: &Identity, unknown: bool) -> bool {
        self.user.as_ref().is_none_or(|user| user.number == identity.uid)
            && self.group.as_ref().is_none_or(|group| identity.groups.contains(&group.number))
            && self
                .program
                .as_ref()
                .is_none_or(|program| if identity.program.is_empty() { unknown } else { is_program(program, identity) })
            && self.cgroup.as_ref().is_none_or(|cgroup| {
                if identity.cgroup.is_empty() { unknown } else { is_below(&identity.cgroup, cgroup) }
            })
    }
}

fn is_program(wanted: &str, identity: &Identity) -> bool {
    if wanted.starts_with('/') { wanted == identity.program } else { wanted == identity.name() }
}

/// Is the control group `inner` the group `outer` or below it?
fn is_below(inner: &str, outer: &str) -> bool {
    let outer = outer.trim_end_matches('/');
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|user| &user.text);
        let group = self.group.as_ref().map(|group| &group.text);
        let parts =
            [("user", user), ("group", group), ("program", self.program.as_ref()), ("cgroup", self.cgroup.as_ref())];
        for (keyword, value) in parts {
            if let Some(value) = value {
                write!(f, " {keyword} {value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_match_by_path_or_by_name() {
        let nginx = Identity { program: "/usr/sbin/nginx".into(), ..Identity::default() };
        let matches = |program: &str| Who { program: Some(program.into()), ..Who::default() }.matches(&nginx, false);
        assert!(matches("nginx") && matches("/usr/sbin/nginx"));
        assert!(!matches("/tmp/nginx") && !matches("ngin") && !matches("sbin/nginx") && !matches("/nginx"));
    }

    #[test]
    fn control_groups_match_with_all_below_them_and_not_by_half_a_name() {
        assert!(
            is_below("/system.slice/nginx.service", "/system.slice") && is_below("/a", "/a") && is_below("/a/b", "/")
        );
        assert!(is_below("/a/b", "/a/") && !is_below("/ab", "/a") && !is_below("/a", "/a/b"));
    }

    #[test]
    fn all_that_is_said_must_be_so() {
        let who = Who {
            user: Some(Named { text: "1000".into(), number: 1000 }),
            group: Some(Named { text: "5".into(), number: 5 }),
            ..Who::default()
        };
        let of = |uid, groups: &[u32]| Identity { uid, groups: groups.into(), ..Identity::default() };
        assert!(who.matches(&of(1000, &[3, 5]), false));
        assert!(!who.matches(&of(1000, &[3]), true) && !who.matches(&of(1001, &[5]), true));
        assert!(Who::default().matches(&Identity::default(), false));
    }
}

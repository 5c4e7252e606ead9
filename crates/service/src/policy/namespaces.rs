//! The network namespaces of a configuration, by the names of their stacks.

use super::join::JoinRule;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// The name of the stack whose policy this is.
    pub own: String,
    /// The other fast stacks that serve a namespace of their own.
    pub others: Vec<OtherNamespace>,
}

/// A namespace that another stack of the same configuration serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherNamespace {
    /// The stack's name.
    pub name: String,
    /// The service's number of the stack, or [`towpath_ring::command::HOME`].
    pub number: u8,
    /// The namespace, as the configuration names it. `None`: that in which the service was started.
    pub netns: Option<String>,
}

impl Namespaces {
    /// The number of another stack.
    pub fn number(&self, name: &str) -> Option<u8> {
        self.others.iter().find(|other| other.name == name).map(|other| other.number)
    }

    /// Is the rule about this stack, and about another one that there is? The error says what is wrong.
    pub fn knows(&self, rule: &JoinRule) -> Result<(), String> {
        let Self { own, others } = self;
        if ![&rule.from, &rule.to].contains(&own) {
            return Err(format!(
                "the rule is about {:?} and {:?}, and this is the policy of {own:?}; write it there, or into the \
                 configuration's first table",
                rule.from, rule.to
            ));
        }
        let other = if rule.from == *own { &rule.to } else { &rule.from };
        if self.number(other).is_some() {
            return Ok(());
        }
        let names: Vec<&str> = others.iter().map(|other| other.name.as_str()).collect();
        let known = if names.is_empty() { "none".into() } else { names.join(", ") };
        Err(format!(
            "no fast stack {other:?} serves a network namespace beside that of {own:?}; there are {known} ([stacks.NAME] with \
             netns, and \"home\" for the service itself)"
        ))
    }
}

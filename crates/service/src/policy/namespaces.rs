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
        let other = self.other_of(&rule.from, &rule.to).ok_or_else(|| {
            format!(
                "the rule is about {:?} and {:?}, and this is the policy of {:?}; write it there, or into the \
                 configuration's first table",
                rule.from, rule.to, self.own
            )
        })?;
        self.serves(other)
    }

    /// Can this stack answer a question about a join from one of these to the other? The error says what is wrong.
    pub fn can_answer(&self, from: &str, to: &str) -> Result<(), String> {
        let other = self.other_of(from, to).ok_or_else(|| {
            format!(
                "the question is about {from:?} and {to:?}, and this is the policy of {:?}; ask one of the two, by \
                 --stack NAME",
                self.own
            )
        })?;
        self.serves(other)
    }

    /// Of `from` and `to`, the stack that is not this one.
    fn other_of<'a>(&self, from: &'a str, to: &'a str) -> Option<&'a str> {
        if from == self.own { Some(to) } else { Some(from).filter(|_| to == self.own) }
    }

    /// Does another stack of this name serve a namespace?
    fn serves(&self, other: &str) -> Result<(), String> {
        if self.number(other).is_some() {
            return Ok(());
        }
        let Self { own, others } = self;
        let names: Vec<&str> = others.iter().map(|other| other.name.as_str()).collect();
        let known = if names.is_empty() { "none".into() } else { names.join(", ") };
        Err(format!(
            "no fast stack {other:?} serves a network namespace beside that of {own:?}; there are {known} ([stacks.NAME] with \
             netns, and \"home\" for the service itself)"
        ))
    }
}

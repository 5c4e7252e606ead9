//! One text of the key `interface`: the name of an interface, a pattern of names, or what stands for the default routes.

use glob::Pattern;

/// What stands for the interfaces of the default routes.
const DEFAULT_ROUTE: &str = "default-route";
/// What makes a text a pattern. Linux allows these in names, but nobody uses them.
const SPECIAL: [char; 3] = ['*', '?', '['];

/// Which interfaces are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The one of this name. It must be there at the start.
    Name(String),
    /// All whose names match, whenever they appear.
    Pattern(Pattern),
    /// Those of the default routes in the main table, of IPv4 and IPv6, with all their next hops.
    DefaultRoute,
}

impl Selector {
    /// Reads a text. On error: the reason, and what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == DEFAULT_ROUTE {
            return Ok(Self::DefaultRoute);
        }
        if !text.contains(SPECIAL) {
            return Ok(Self::Name(text.into()));
        }
        let help = "* stands for any text, ? for one character, [ab] for one of several";
        Pattern::new(text).map(Self::Pattern).map_err(|error| format!("{text:?} is no pattern: {}; {help}", error.msg))
    }

    /// Is this text one that stands for interfaces which may come and go?
    pub fn is_open(text: &str) -> bool {
        !matches!(Self::parse(text), Ok(Self::Name(_)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_text_is_a_name_a_pattern_or_the_default_routes() {
        let matches = |text: &str, name: &str| match Selector::parse(text).unwrap() {
            Selector::Pattern(pattern) => pattern.matches(name),
            other => panic!("{other:?}"),
        };
        assert_eq!(Selector::parse("eth1.7").unwrap(), Selector::Name("eth1.7".into()));
        assert_eq!(Selector::parse("default-route").unwrap(), Selector::DefaultRoute);
        assert!(matches("eth*", "eth12") && matches("eth?", "eth1") && matches("en[ps]*", "enp3s0"));
        assert!(!matches("eth*", "veth1") && !matches("eth?", "eth12") && !matches("en[ps]*", "eno1"));
        let why = Selector::parse("eth[1").unwrap_err();
        assert!(why.contains("is no pattern") && why.contains("stands for any text"), "{why}");
        assert!(Selector::is_open("veth*") && Selector::is_open("default-route") && !Selector::is_open("eth0"));
    }
}

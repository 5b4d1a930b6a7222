//! Kernel configuration fragments, and whether Kconfig honoured them.

use std::collections::BTreeMap;

/// The settings of a fragment or of a `.config`: option to value, `None` for "is not set".
pub(crate) type Settings = BTreeMap<String, Option<String>>;

/// Reads `CONFIG_X=value` and `# CONFIG_X is not set` lines; a later line wins.
pub(crate) fn settings(text: &str) -> Settings {
    text.lines().filter_map(setting).collect()
}

fn setting(line: &str) -> Option<(String, Option<String>)> {
    let line = line.trim();
    let unset = line.strip_prefix("# ").and_then(|rest| rest.strip_suffix(" is not set"));
    let (option, value) = match (unset, line.split_once('=')) {
        // `=n` means the same as "is not set".
        (Some(option), _) | (None, Some((option, "n"))) => (option, None),
        (None, Some((option, value))) => (option, Some(value.to_owned())),
        (None, None) => return None,
    };
    option.starts_with("CONFIG_").then(|| (option.to_owned(), value))
}

/// The wanted settings that `actual` does not have, each as "X: wanted y, got n".
///
/// Kconfig omits an option from `.config` if one that it depends on is off: that is "not set" too.
pub(crate) fn unmet(wanted: &Settings, actual: &Settings) -> Vec<String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "n".to_owned());
    wanted
        .iter()
        .filter_map(|(option, wanted)| {
            let got = actual.get(option).cloned().flatten();
            (got != *wanted)
                .then(|| format!("{option}: wanted {}, got {}", text(wanted), text(&got)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAGMENT: &str = "
# A comment, not a setting
CONFIG_A=y
CONFIG_B=m
# CONFIG_C is not set
CONFIG_D=n
CONFIG_TEXT=\"a=b\"
CONFIG_A=m
";

    #[test]
    fn fragments_are_read_and_the_last_line_wins() {
        let settings = settings(FRAGMENT);
        assert_eq!(settings.len(), 5);
        assert_eq!(settings["CONFIG_A"].as_deref(), Some("m"));
        assert_eq!(settings["CONFIG_C"], None);
        assert_eq!(settings["CONFIG_D"], None);
        assert_eq!(settings["CONFIG_TEXT"].as_deref(), Some("\"a=b\""));
    }

    #[test]
    fn each_line_that_was_not_honoured_is_named() {
        let wanted = settings(FRAGMENT);
        let actual = settings("CONFIG_A=m\nCONFIG_C=y\nCONFIG_TEXT=\"a=b\"\n");
        assert_eq!(
            unmet(&wanted, &actual),
            ["CONFIG_B: wanted m, got n", "CONFIG_C: wanted n, got y"]
        );
        assert!(unmet(&wanted, &wanted).is_empty());
    }
}

// SPDX-License-Identifier: GPL-2.0-or-later
//! Suggestions for misspelt names.

/// The name among these that `text` is most like, if it is like one: by the measure, and with the
/// threshold, with which clap suggests options and subcommands.
pub fn similar(text: &str, names: impl IntoIterator<Item = impl Into<String>>) -> Option<String> {
    const LEAST: f64 = 0.7;
    let measured = names.into_iter().map(|name| {
        let name = name.into();
        (strsim::jaro(text, &name), name)
    });
    let best = measured.filter(|(like, _)| *like > LEAST).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, name)| name)
}

/// The suggestion as the end of a sentence; empty if there is none.
pub fn did_you_mean(text: &str, names: impl IntoIterator<Item = impl Into<String>>) -> String {
    similar(text, names).map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_the_most_similar_name_and_nothing_far_off() {
        let names = ["demo", "contention", "cgroups", "smoke"];
        assert_eq!(similar("demmo", names).as_deref(), Some("demo"));
        assert_eq!(similar("contetnion", names).as_deref(), Some("contention"));
        assert_eq!(similar("s6", names), None);
        assert_eq!(did_you_mean("cgroup", names), "; did you mean `cgroups`?");
        assert_eq!(did_you_mean("", names), "");
        assert_eq!(did_you_mean("x", [""; 0]), "");
    }
}

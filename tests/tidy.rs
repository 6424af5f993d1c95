//! Rules of the source tree that no compiler checks: who imports whom, sizes, purity, and that
//! the documents name what the code has. The import table is read from `ARCHITECTURE.md`, so the
//! document cannot drift from the tree.

// Reading the tree is this test's job.
#![allow(clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 70;
const MAX_COLUMNS: usize = 100;
const MAX_HEADER_LINES: usize = 15;

#[test]
fn imports_follow_the_table_in_the_architecture() {
    let table = import_table();
    let mut wrong = Vec::new();
    for file in sources() {
        let Some(module) = file.module() else { continue };
        let Some(allowed) = table.get(&module) else {
            wrong.push(format!("{}: module `{module}` has no row in the table", file.path));
            continue;
        };
        for (line, target) in file.imports() {
            let own = target.first() == Some(&module);
            if !own && !allowed.permits(&target) {
                let target = target.join("::");
                wrong.push(format!("{}:{line}: `{module}` may not import `{target}`", file.path));
            }
        }
        for line in file.escapes_through_super() {
            wrong.push(format!("{}:{line}: reach other modules by `crate::`", file.path));
        }
    }
    assert_none(&wrong);
}

#[test]
fn the_import_table_names_modules_that_exist() {
    let modules: BTreeSet<String> = sources().iter().filter_map(Source::module).collect();
    let mut wrong = Vec::new();
    for (row, allowed) in import_table() {
        let targets = allowed.targets.iter().filter_map(|target| target.first().cloned());
        for name in targets.chain([row]) {
            if !modules.contains(&name) {
                wrong.push(format!("ARCHITECTURE.md: there is no module `{name}`"));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn files_functions_and_lines_stay_short() {
    let mut wrong = Vec::new();
    for file in sources() {
        let lines = file.shipped.lines().count();
        if lines > MAX_FILE_LINES && !file.is_test() {
            wrong.push(format!("{}: {lines} lines without tests, split it", file.path));
        }
        if file.is_test() {
            continue;
        }
        for (line, name, length) in file.functions() {
            if length > MAX_FUNCTION_LINES {
                wrong.push(format!("{}:{line}: `{name}` has {length} lines", file.path));
            }
        }
    }
    for path in rust_files(&["src", "tests", "benches"]) {
        for (index, line) in read(&path).lines().enumerate() {
            let columns = line.chars().count();
            if columns > MAX_COLUMNS {
                wrong.push(format!("{}:{}: {columns} columns", path.display(), index + 1));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn every_file_says_briefly_what_it_is() {
    let mut wrong = Vec::new();
    for file in sources() {
        let header = file.text.lines().take_while(|line| line.starts_with("//!")).count();
        let map = file.path == "src/lib.rs";
        if header == 0 || header > MAX_HEADER_LINES && !map {
            wrong.push(format!("{}: {header} header lines, 1 to {MAX_HEADER_LINES}", file.path));
        }
    }
    assert_none(&wrong);
}

#[test]
fn codecs_and_decisions_touch_neither_kernel_nor_clock() {
    const PURE: [&str; 15] = [
        "src/batch.rs",
        "src/time.rs",
        "src/iggy_wire/",
        "src/pg_wire/",
        "src/ingest/",
        "src/fanout/",
        "src/commit/",
        "src/statefile/",
        "src/shard/pipeline",
        "src/shard/rebuild",
        "src/shard/event.rs",
        "src/shard/snapshot.rs",
        "src/shard/reason.rs",
        "src/shard/placement.rs",
        "src/admin/derive.rs",
    ];
    const IMPURE: [&str; 12] = [
        "async ",
        ".await",
        "std::fs",
        "std::net",
        "std::thread",
        "Instant::now",
        "SystemTime::now",
        "tracing::",
        "monoio::",
        "tokio::",
        "println!",
        "Mutex<",
    ];
    let mut wrong = Vec::new();
    for file in sources().iter().filter(|file| PURE.iter().any(|p| file.path.starts_with(p))) {
        for (line, token) in file.find_any(&IMPURE) {
            wrong.push(format!("{}:{line}: pure code uses `{}`", file.path, token.trim()));
        }
    }
    assert_none(&wrong);
}

#[test]
fn the_wire_cannot_panic_on_what_it_reads() {
    const CASTS: [&str; 12] = [
        " as u8",
        " as u16",
        " as u32",
        " as u64",
        " as u128",
        " as usize",
        " as i8",
        " as i16",
        " as i32",
        " as i64",
        " as i128",
        " as isize",
    ];
    const PANICS: [&str; 5] = [".unwrap()", ".expect(", "panic!(", "unreachable!(", "assert!("];
    // What the compiler evaluates cannot surprise at run time: constants and `const` blocks.
    let constant = |line: &str, token: &str| {
        let before = line.split_once(token).map_or("", |(before, _)| before);
        let operand = before.rsplit(|c: char| !is_word(c)).next().unwrap_or_default();
        let is_name = operand.starts_with(|c: char| c.is_ascii_uppercase());
        before.ends_with("const { ") || is_name && operand == operand.to_uppercase()
    };
    let mut wrong = Vec::new();
    let is_wire = |file: &&Source| {
        let wires = ["src/iggy_wire/", "src/pg_wire/"];
        wires.iter().any(|wire| file.path.starts_with(wire)) && !file.is_test()
    };
    for file in sources().iter().filter(is_wire) {
        for (line, token) in file.find_any(&CASTS).into_iter().chain(file.find_any(&PANICS)) {
            if !constant(file.shipped.lines().nth(line - 1).unwrap_or_default(), token) {
                wrong.push(format!("{}:{line}: the wire uses `{}`", file.path, token.trim()));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn unsafe_code_lives_in_the_driver_only() {
    const DRIVER: [&str; 2] = ["src/shard/driver", "src/shard/pin.rs"];
    let mut wrong = Vec::new();
    for file in sources().iter().filter(|file| !DRIVER.iter().any(|d| file.path.starts_with(d))) {
        for (line, _) in file.find_any(&["unsafe ", "unsafe{"]) {
            wrong.push(format!("{}:{line}: unsafe code outside the driver", file.path));
        }
    }
    assert_none(&wrong);
}

#[test]
fn names_say_what_things_are() {
    const EMPTY_WORDS: [&str; 6] = ["utils", "util", "common", "types", "manager", "helpers"];
    let mut wrong = Vec::new();
    for file in sources() {
        let stem = Path::new(&file.path).file_stem().and_then(|stem| stem.to_str());
        if stem.is_some_and(|stem| EMPTY_WORDS.contains(&stem)) {
            wrong.push(format!("{}: the name says nothing", file.path));
        }
        for (line, _) in file.find_any(&["fn get_", "todo!(", "unimplemented!("]) {
            wrong.push(format!("{}:{line}: no `get_` names and no stubs", file.path));
        }
    }
    assert_none(&wrong);
}

#[test]
fn every_dependency_has_its_reason() {
    let text = read(Path::new("Cargo.toml"));
    let mut wrong = Vec::new();
    let (mut inside, mut explained, mut count) = (false, false, 0);
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim_end_matches(']').ends_with("dependencies");
        } else if inside && line.contains('=') && !line.starts_with('#') {
            count += 1;
            if !explained {
                wrong.push(format!("Cargo.toml:{}: no reason above `{line}`", index + 1));
            }
        }
        explained = line.starts_with("# ");
    }
    assert!(count > 10, "only {count} dependencies found: the scan is broken");
    assert_none(&wrong);
}

#[test]
fn the_documents_name_every_config_key() {
    // Fields of the plan whose key in the file has another name.
    let renamed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("key", &["sources", "clusters"][..]),
        ("credentials", &["username", "password", "token"][..]),
        ("topics", &["include"][..]),
        ("captures", &["sources"][..]),
        ("warnings", &[][..]),
        ("upstream", &["stream", "topic"][..]),
        ("downstream", &["stream", "topic"][..]),
    ]);
    let path = Path::new("docs/config.md");
    if !root().join(path).exists() {
        eprintln!("skipped: {} is not written yet", path.display());
        return;
    }
    let document = words(&read(path));
    let plan = Source::read(Path::new("src/config/plan.rs"));
    let fields = plan.shipped.lines().filter_map(|line| line.strip_prefix("    pub "));
    let fields: BTreeSet<&str> =
        fields.filter_map(|rest| rest.split_once(':')).map(|f| f.0).collect();
    assert!(fields.len() > 20, "only {} fields found: the scan is broken", fields.len());
    let keys = fields.iter().flat_map(|field| match renamed.get(field) {
        Some(keys) => keys.to_vec(),
        None => vec![*field],
    });
    let missing = keys.filter(|key| !document.contains(*key));
    let missing: Vec<String> = missing.map(|key| format!("docs/config.md: no `{key}`")).collect();
    assert_none(&missing);
}

#[test]
fn the_documents_name_every_reason_and_every_metric() {
    let mut wrong = Vec::new();
    let of_captures = words(&read(Path::new("docs/capture.md")));
    let mut reasons = words(&read(Path::new("docs/mirror.md")));
    reasons.extend(of_captures.iter().cloned());
    let mut refusals = 0;
    for file in sources().iter().filter(|file| !file.is_test()) {
        for code in file.reason_codes() {
            if !reasons.contains(&code) {
                wrong.push(format!("docs: no reason `{code}` of {}", file.path));
            }
        }
        for code in file.refusal_codes() {
            refusals += 1;
            if !of_captures.contains(&code) {
                wrong.push(format!("docs/capture.md: no reason `{code}` of {}", file.path));
            }
        }
    }
    assert!(refusals > 30, "only {refusals} refusals found: the scan is broken");
    let metrics = words(&read(Path::new("docs/status.md")));
    let names: Vec<String> = ["src/admin/metrics.rs", "src/admin/capture_metrics.rs"]
        .iter()
        .map(|path| Source::read(Path::new(path)))
        .flat_map(|source| {
            ["tidegate_", "process_", "iggy_connector_"].map(|start| source.literals(start))
        })
        .flatten()
        .collect();
    assert!(names.len() > 40, "only {names:?} found: the scan is broken");
    for name in names {
        let forms = [name.clone(), format!("{name}_total"), format!("{name}_info")];
        if !forms.iter().any(|form| metrics.contains(form)) {
            wrong.push(format!("docs/status.md: no metric `{name}`"));
        }
    }
    assert_none(&wrong);
}

#[test]
fn every_failure_in_the_documents_names_a_test_that_exists() {
    let tests = test_names();
    assert!(tests.len() > 1000, "only {} tests found: the scan is broken", tests.len());
    let known: BTreeSet<String> = ["mirror", "capture", "status", "config", "postgres-setup"]
        .iter()
        .flat_map(|name| words(&read(&PathBuf::from(format!("docs/{name}.md")))))
        .collect();
    let (mut wrong, mut rows) = (Vec::new(), 0);
    let path = Path::new("docs/delivery.md");
    for (index, line) in read(path).lines().enumerate().filter(|(_, line)| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let place = format!("{}:{}", path.display(), index + 1);
        let [_, _, seen, _, shown] = cells[..] else {
            wrong.push(format!("{place}: {} cells, not 5", cells.len()));
            continue;
        };
        if shown.trim() == "shown by" {
            continue;
        }
        rows += 1;
        if !shown.contains('`') {
            wrong.push(format!("{place}: no test shows it"));
        }
        for test in ticked(shown).iter().filter(|test| !tests.contains(*test)) {
            wrong.push(format!("{place}: there is no test `{test}`"));
        }
        let names = ticked(seen).into_iter().filter(|name| name.contains('_'));
        for name in names.flat_map(|name| words(&name)).filter(|name| !known.contains(name)) {
            wrong.push(format!("{place}: no other document knows `{name}`"));
        }
    }
    assert!(rows > 40, "only {rows} rows found: the scan is broken");
    let security = read(Path::new("SECURITY.md"));
    let promises = security
        .lines()
        .filter(|line| line.starts_with("| "))
        .filter_map(|line| line.rsplit(" | ").next());
    let named: Vec<String> = promises.flat_map(ticked).filter(|name| name.contains('_')).collect();
    assert!(named.len() > 20, "only {named:?} found: the scan is broken");
    for test in named.iter().filter(|test| !tests.contains(*test)) {
        wrong.push(format!("SECURITY.md: there is no test `{test}`"));
    }
    assert_none(&wrong);
}

#[test]
fn unsafe_code_is_counted_file_by_file() {
    let mut table = BTreeMap::new();
    let is_file = |line: &&str| ["| `src/", "| `tests/"].iter().any(|s| line.starts_with(s));
    for line in read(Path::new("SECURITY.md")).lines().filter(is_file) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let count: usize = cells[1].parse().expect("the second column is a number");
        table.extend(ticked(cells[0]).into_iter().map(|path| (path, count)));
    }
    let mut found = BTreeMap::new();
    for path in rust_files(&["src", "tests", "fuzz"]) {
        let code = blank(&read(&path));
        let count = code.split(|c: char| !is_word(c)).filter(|word| *word == "unsafe").count();
        if count > 0 {
            found.insert(path.to_string_lossy().into_owned(), count);
        }
    }
    assert_eq!(found, table, "on the left the tree, on the right the table in SECURITY.md");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    let docs = fs::read_dir(root().join("docs")).into_iter().flatten();
    let docs =
        docs.filter_map(Result::ok).map(|entry| PathBuf::from("docs").join(entry.file_name()));
    let top = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md", "tuning.md"];
    let top = top.map(PathBuf::from);
    for path in docs.chain(top).filter(|path| path.extension().is_some_and(|ext| ext == "md")) {
        let text = read(&path);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
            let target = path.parent().unwrap_or(Path::new("")).join(link);
            if !root().join(&target).exists() {
                wrong.push(format!("{}: {link} does not exist", path.display()));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn the_scanner_sees_code_and_nothing_else() {
    let source = Source::new(
        "src/admin/example.rs",
        "//! crate::a\n/* crate::b /* nested */ crate::c */\nuse crate::{batch::{X, self}, time};\n\
         const S: &str = \"crate::d \\\" {\"; const R: &str = r#\"crate::e \"{ \"#;\n\
         fn f<'a>(x: &'a [u8; 3]) -> char {\n    '{'\n}\n\
         #[cfg(test)]\nmod tests {\n    use crate::loopback;\n}\n",
    );
    let targets: Vec<String> = source.imports().iter().map(|(_, path)| path.join("::")).collect();
    assert_eq!(targets, ["batch::X", "batch", "time"]);
    assert_eq!(source.functions(), [(5, "f".to_owned(), 3)]);
    assert_eq!(source.literals("crate::d"), ["crate::d \\\" {"]);
    let escape = Source::new("src/admin/example.rs", "use super::super::shard;\nuse super::x;\n");
    assert_eq!(escape.escapes_through_super(), [1]);
}

/// One source file: as it is, and with comments and the insides of literals blanked out.
struct Source {
    path: String,
    text: String,
    /// Blanked, without the inline test module.
    shipped: String,
}

impl Source {
    fn read(path: &Path) -> Source {
        Source::new(&path.to_string_lossy(), &read(path))
    }

    fn new(path: &str, text: &str) -> Source {
        let code = blank(text);
        let lines: Vec<&str> = code.lines().collect();
        let tests = lines.windows(2).position(|pair| {
            pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
        });
        let shipped = lines[..tests.unwrap_or(lines.len())].join("\n");
        Source { path: path.to_owned(), text: text.to_owned(), shipped }
    }

    /// First segment of the module path; the crate's roots have none.
    fn module(&self) -> Option<String> {
        let inner = self.path.strip_prefix("src/")?;
        let first = inner.split('/').next()?.trim_end_matches(".rs");
        (!matches!(first, "lib" | "main")).then(|| first.to_owned())
    }

    /// Files that hold nothing but tests or their fixtures.
    fn is_test(&self) -> bool {
        let is_part = self.path.contains("/tests/");
        is_part || self.path.ends_with("tests.rs") || self.path.ends_with("fixture.rs")
    }

    /// Every path behind `crate::`, groups expanded, with its line.
    fn imports(&self) -> Vec<(usize, Vec<String>)> {
        let mut found = Vec::new();
        for (at, _) in self.shipped.match_indices("crate::") {
            let line = self.line(at);
            let rest = &self.shipped[at + "crate::".len()..];
            found.extend(use_tree(rest).into_iter().map(|path| (line, path)));
        }
        found
    }

    /// Lines on which a chain of `super::` leaves the top-level module.
    fn escapes_through_super(&self) -> Vec<usize> {
        let inner = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        let depth = inner.trim_end_matches("/mod").split('/').count();
        let chain = "super::".repeat(depth);
        self.shipped.match_indices(&chain).map(|(at, _)| self.line(at)).collect()
    }

    fn find_any<'t>(&self, tokens: &[&'t str]) -> Vec<(usize, &'t str)> {
        let mut found = Vec::new();
        for token in tokens {
            for (at, _) in self.shipped.match_indices(token) {
                let after = self.shipped[at + token.len()..].chars().next();
                let open = token.ends_with(|c: char| c.is_alphanumeric());
                if !(open && after.is_some_and(|c| c.is_alphanumeric() || c == '_')) {
                    found.push((self.line(at), *token));
                }
            }
        }
        found
    }

    /// Line, name and length of every function that has a body.
    fn functions(&self) -> Vec<(usize, String, usize)> {
        let code = &self.shipped;
        let mut found = Vec::new();
        for (at, _) in code.match_indices("fn ") {
            let joined = code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let name: String = code[at + 3..].chars().take_while(|c| is_word(*c)).collect();
            if joined || name.is_empty() {
                continue;
            }
            if let Some(end) = body_end(&code[at..]) {
                let length = code[at..at + end].matches('\n').count() + 1;
                found.push((self.line(at), name, length));
            }
        }
        found
    }

    /// String literals outside the tests that begin like this.
    fn literals(&self, prefix: &str) -> Vec<String> {
        let lines: Vec<&str> = self.text.lines().take(self.shipped.lines().count()).collect();
        let text = lines.join("\n");
        let opening = format!("\"{prefix}");
        let starts = text.match_indices(&opening).map(|(at, _)| &text[at + 1..]);
        let inside = starts.map(|rest| {
            let mut escaped = false;
            let inside = rest.chars().take_while(|c| {
                let ends = *c == '"' && !escaped;
                escaped = *c == '\\' && !escaped;
                !ends
            });
            inside.collect()
        });
        inside.collect()
    }

    /// Codes in the table of reasons (`NAME = Status "code"`) and in hand-made conditions.
    fn reason_codes(&self) -> Vec<String> {
        let mut codes = Vec::new();
        for line in self.text.lines().take(self.shipped.lines().count()) {
            let statuses =
                ["Starting", "Running", "Degraded", "Stopping", "Stopped", "Error"].iter();
            let table = statuses.map(|status| format!("= {status} \""));
            for opening in table.chain(["reason: \"".to_owned()]) {
                let code = line.split_once(&opening).and_then(|(_, rest)| rest.split('"').next());
                codes.extend(code.filter(|code| !code.is_empty()).map(str::to_owned));
            }
        }
        codes
    }

    /// Codes of what keeps a capture from starting, which become reasons of their own.
    fn refusal_codes(&self) -> Vec<String> {
        const OPENINGS: [&str; 5] =
            ["refusal(", "refuse(", "stop(", "Level::Refusal,", "Level::Wait,"];
        if !self.path.starts_with("src/ingest/postgres_cdc/setup") {
            return Vec::new();
        }
        let lines: Vec<&str> = self.text.lines().take(self.shipped.lines().count()).collect();
        let text = lines.join("\n");
        let behind = OPENINGS.iter().flat_map(|opening| text.split(opening).skip(1));
        let codes =
            behind.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
        codes.map(str::to_owned).collect()
    }

    fn line(&self, at: usize) -> usize {
        self.shipped[..at].matches('\n').count() + 1
    }
}

/// What a row of the table permits.
struct Allowed {
    everything: bool,
    targets: Vec<Vec<String>>,
}

impl Allowed {
    fn permits(&self, target: &[String]) -> bool {
        self.everything || self.targets.iter().any(|allowed| target.starts_with(allowed))
    }
}

fn import_table() -> BTreeMap<String, Allowed> {
    let text = read(Path::new("ARCHITECTURE.md"));
    let (_, section) = text.split_once("## Who may import whom").expect("the table has a heading");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut table = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.trim_matches('|').split('|');
        let (modules, allowed) = (cells.next().unwrap_or(""), cells.next().unwrap_or(""));
        for module in ticked(modules) {
            let targets = ticked(allowed).iter().map(|name| segments(name)).collect();
            let everything = allowed.trim() == "everything";
            table.insert(module, Allowed { everything, targets });
        }
    }
    assert!(table.len() > 8, "only {} rows found in the import table", table.len());
    table
}

/// What stands between backticks.
fn ticked(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Every function under a `#[test]`, wherever it is.
fn test_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in rust_files(&["src", "tests"]) {
        let code = blank(&read(&path));
        for behind in code.split("#[test]").skip(1) {
            let name = behind.split_once("fn ").map(|(_, rest)| rest);
            names.extend(name.map(|rest| rest.chars().take_while(|c| is_word(*c)).collect()));
        }
    }
    names
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").map(str::to_owned).collect()
}

/// Paths of a use tree: `a::{b, c::d}` gives `a::b` and `a::c::d`; `self` and `*` end a path.
fn use_tree(text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        return split_group(group).into_iter().flat_map(use_tree).collect();
    }
    let word: String = text.chars().take_while(|c| is_word(*c)).collect();
    let rest = &text[word.len()..];
    if word.is_empty() || word == "self" {
        return vec![Vec::new()];
    }
    let tails = match rest.strip_prefix("::") {
        Some(tail) if tail.starts_with(|c: char| is_word(c) || c == '{') => use_tree(tail),
        _ => vec![Vec::new()],
    };
    tails.into_iter().map(|tail| [vec![word.clone()], tail].concat()).collect()
}

/// The comma-separated parts of a group up to its closing brace.
fn split_group(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

/// Where the body of the function that begins here ends; `None` for a declaration.
fn body_end(code: &str) -> Option<usize> {
    let (mut round, mut braces) = (0, 0);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => round += 1,
            ')' | ']' => round -= 1,
            ';' if round == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Replaces comments and the insides of string and character literals by spaces.
fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = skip(&chars, at);
        let keep_quotes = chars[at] != '/';
        for (index, c) in chars.iter().enumerate().take(end).skip(at) {
            let quote = keep_quotes && (index == at || index + 1 == end);
            out.push(if *c == '\n' || quote || end == at + 1 { *c } else { ' ' });
        }
        at = end;
    }
    out
}

/// End of the comment or literal that begins at `at`, or `at + 1` for code.
fn skip(chars: &[char], at: usize) -> usize {
    let next = |offset: usize| chars.get(at + offset).copied();
    let find = |from: usize, stop: &dyn Fn(usize) -> bool| {
        (from..chars.len()).find(|i| stop(*i)).unwrap_or(chars.len())
    };
    match (chars[at], next(1)) {
        ('/', Some('/')) => find(at, &|i| chars[i] == '\n'),
        ('/', Some('*')) => {
            let (mut i, mut depth) = (at + 2, 1);
            while i < chars.len() && depth > 0 {
                match (chars[i], chars.get(i + 1)) {
                    ('/', Some('*')) => (i, depth) = (i + 2, depth + 1),
                    ('*', Some('/')) => (i, depth) = (i + 2, depth - 1),
                    _ => i += 1,
                }
            }
            i
        }
        ('r', Some('"' | '#')) if at == 0 || !is_word(chars[at - 1]) || chars[at - 1] == 'b' => {
            let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
            if next(1 + hashes) != Some('"') {
                return at + 1;
            }
            let closes = |i: usize| {
                chars[i] == '"'
                    && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
            };
            (find(at + 2 + hashes, &closes) + 1 + hashes).min(chars.len())
        }
        ('"', _) => {
            let mut i = at + 1;
            while i < chars.len() && chars[i] != '"' {
                i += if chars[i] == '\\' { 2 } else { 1 };
            }
            (i + 1).min(chars.len())
        }
        ('\'', Some('\\')) => (find(at + 3, &|i| chars[i] == '\'') + 1).min(chars.len()),
        ('\'', Some(_)) if next(2) == Some('\'') => at + 3,
        _ => at + 1,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !is_word(c)).map(str::to_owned).collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn sources() -> Vec<Source> {
    let sources: Vec<Source> = rust_files(&["src"]).iter().map(|path| Source::read(path)).collect();
    assert!(sources.len() > 10, "only {} files found: the scan is broken", sources.len());
    sources
}

/// Rust files below these folders, as paths relative to the crate.
fn rust_files(folders: &[&str]) -> Vec<PathBuf> {
    let mut waiting: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    let mut files = Vec::new();
    while let Some(path) = waiting.pop() {
        let full = root().join(&path);
        if full.is_dir() {
            let entries = fs::read_dir(&full).expect("a readable folder");
            waiting
                .extend(entries.filter_map(Result::ok).map(|entry| path.join(entry.file_name())));
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} findings:\n{}", wrong.len(), wrong.join("\n"));
}

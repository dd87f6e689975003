//! Exports of the shared library: exactly the names and versions of `rdma.map`, everything that
//! programs or libraries on this machine, or in the listed packages of Debian, import from the two
//! libraries it replaces, and nothing that makes the loader complain.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::read::{ReadCache, ReadRef, SymbolIndex};
use object::{Endianness, elf};
use urnic_testkit::programs;

/// Names under which programs find the library.
const LINKS: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// Folders in which distributions put programs and libraries. Missing folders count as empty.
const FOLDERS: [&str; 8] = [
    "/usr/bin",
    "/usr/sbin",
    "/usr/libexec",
    "/usr/local/bin",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/python3/dist-packages/pyverbs",
];

/// Imports of packages of Debian, one symbol a line, with the packages that import it.
const LISTS: [(&str, &str); 3] = [
    ("Debian 12", include_str!("symbols/debian-12.txt")),
    ("Debian 13", include_str!("symbols/debian-13.txt")),
    ("Debian testing", include_str!("symbols/debian-testing.txt")),
];

/// `name@version`.
type Versioned = String;

#[test]
fn library_exports_exactly_the_symbols_of_the_map() {
    let mapped = mapped();
    let exported = exports();
    let missing: Vec<_> = mapped.difference(&exported).collect();
    let unlisted: Vec<_> = exported.difference(&mapped).collect();
    assert!(missing.is_empty(), "in rdma.map and not exported: {missing:#?}");
    assert!(unlisted.is_empty(), "exported and not in rdma.map: {unlisted:#?}");
}

#[test]
fn every_import_of_an_installed_file_is_exported() {
    let exported = exports();
    let mut files = 0;
    let mut missing = BTreeMap::<Versioned, Vec<PathBuf>>::new();
    for path in FOLDERS.iter().flat_map(|folder| files_below(Path::new(folder))) {
        let imports = imports(&path);
        files += usize::from(!imports.is_empty());
        for import in imports.difference(&exported) {
            missing.entry(import.clone()).or_default().push(path.clone());
        }
    }
    if files == 0 {
        urnic_testkit::skip("imports of installed programs", "none that uses RDMA is installed");
    }
    let lines: Vec<_> = missing
        .iter()
        .map(|(name, files)| {
            format!("{name}: by {} and {} more", files[0].display(), files.len() - 1)
        })
        .collect();
    assert!(lines.is_empty(), "imported and not exported:\n{}", lines.join("\n"));
}

/// The lists are made by hand: `symbols/README.md` says how.
#[test]
fn every_import_of_the_listed_packages_is_exported() {
    let exported = exports();
    for (list, lines) in LISTS {
        let lines = lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let missing: Vec<_> = lines
            .clone()
            .filter(|line| !exported.contains(line.split(' ').next().unwrap()))
            .collect();
        assert!(missing.is_empty(), "{list}: imported and not exported:\n{}", missing.join("\n"));
        assert!(lines.count() > 100, "{list} is a list of names");
    }
}

#[test]
fn the_loader_finds_every_version() {
    if let Some(reason) = programs::missing(["ibv_devices"]) {
        urnic_testkit::skip("the loader's view of the libraries", &reason);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for link in LINKS {
        symlink(library(), folder.path().join(link)).unwrap();
    }
    let run = programs::program("ibv_devices")
        .env("LD_LIBRARY_PATH", folder.path())
        .env("LD_BIND_NOW", "1")
        .output()
        .unwrap();
    let (said, complaints) =
        (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(!complaints.contains("no version information"), "{complaints}");
    assert!(run.status.success(), "{}: {complaints}", run.status);
    assert!(said.contains("urnic0"), "another library answered: {said}");
}

/// Returns the shared library, which cargo builds beside the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("liburnic_rdma.so");
    assert!(library.is_file(), "{} is not there", library.display());
    library
}

/// Returns the names of `rdma.map`, each with its version node. Those of the first private node are
/// in every later one as well (`build.rs`).
fn mapped() -> BTreeSet<Versioned> {
    let mut node = "";
    let mut names = BTreeSet::new();
    for line in include_str!("../rdma.map").lines() {
        if let Some((name, "")) = line.split_once(" {") {
            node = name;
        } else if let Some(name) = line.strip_prefix("        ") {
            let name = name.strip_suffix(';').unwrap();
            assert!(names.insert(format!("{name}@{node}")), "{name} twice in {node}");
        }
    }
    let private: Vec<_> =
        names.iter().filter_map(|name| name.strip_suffix(FIRST_PRIVATE)).collect();
    let later = ["57", "59", "64", "65"];
    let again: Vec<_> = private
        .iter()
        .filter(|name| !name.starts_with("verbs_register_driver_"))
        .flat_map(|name| later.map(|number| format!("{name}@IBVERBS_PRIVATE_{number}")))
        .collect();
    names.extend(again);
    names
}

const FIRST_PRIVATE: &str = "@IBVERBS_PRIVATE_34";

/// Returns the symbols that the library defines; each name must have one default version.
fn exports() -> BTreeSet<Versioned> {
    let symbols = symbols(&library());
    let defined: Vec<_> = symbols.iter().filter(|symbol| symbol.library.is_none()).collect();
    let mut defaults = BTreeMap::new();
    for symbol in &defined {
        *defaults.entry(&symbol.name).or_insert(0) += usize::from(symbol.is_default);
    }
    let odd: Vec<_> = defaults.iter().filter(|(_, count)| **count != 1).collect();
    assert!(odd.is_empty(), "not one default version: {odd:?}");
    defined.iter().map(|symbol| symbol.versioned()).collect()
}

/// Returns the imports of a file from the two libraries; nothing for other files than ELF.
fn imports(path: &Path) -> BTreeSet<Versioned> {
    let symbols = symbols(path);
    let theirs = symbols.iter().filter(|symbol| {
        symbol.library.as_ref().is_some_and(|library| LINKS.contains(&library.as_str()))
    });
    theirs.map(Symbol::versioned).collect()
}

/// Returns all files below a folder, without links.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

/// A symbol of the dynamic table.
struct Symbol {
    name: String,
    /// Empty if it has none.
    version: String,
    is_default: bool,
    /// The library from which it is imported; `None` for a symbol that the file defines.
    library: Option<String>,
}

impl Symbol {
    fn versioned(&self) -> Versioned {
        format!("{}@{}", self.name, self.version)
    }
}

/// Returns the dynamic symbols of a file; none if it is no 64-bit ELF file, or has none.
fn symbols(path: &Path) -> Vec<Symbol> {
    let mut magic = [0; 5];
    let Ok(mut file) = File::open(path) else { return Vec::new() };
    if file.read_exact(&mut magic).is_err() || magic != *b"\x7fELF\x02" {
        return Vec::new();
    }
    // Only the needed parts are read: some libraries are large.
    let cache = ReadCache::new(file);
    dynamic_symbols(&cache).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn dynamic_symbols<'data>(data: impl ReadRef<'data>) -> object::read::Result<Vec<Symbol>> {
    let header = elf::FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    // Separate debug information has a symbol table without contents in the file.
    let is_whole = sections.iter().any(|section| section.sh_type(endian) == elf::SHT_DYNSYM);
    let Some(versions) = sections.versions(endian, data)?.filter(|_| is_whole) else {
        return Ok(Vec::new());
    };
    let table = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
    let mut symbols = Vec::new();
    for (place, symbol) in table.iter().enumerate() {
        let index = versions.version_index(endian, SymbolIndex(place));
        let name = text(symbol.name(endian, table.strings())?);
        let version = versions.version(index.index())?;
        let version_name = version.map_or_else(String::new, |version| text(version.name()));
        // The first entry is no symbol, and the linker makes one symbol per version.
        if name.is_empty() || name == version_name {
            continue;
        }
        let library = version.and_then(|version| version.file()).map(text);
        if symbol.is_undefined(endian) && library.is_none() {
            continue;
        }
        symbols.push(Symbol {
            name,
            version: version_name,
            is_default: !index.is_hidden(),
            library,
        });
    }
    Ok(symbols)
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

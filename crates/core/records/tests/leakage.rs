//! Measures what index terms reveal to a reader of the store who knows how frequent names are.
//!
//! The reader sees the terms of every object and no key. Whole-value terms are matched with
//! published names by rank. Terms of prefixes form a tree, which is matched from its root down.
//! Better attacks exist, so the figures are lower bounds. `docs/object-leakage.md` holds the table:
//! `cargo test -p sealwire-records --test leakage -- --nocapture`.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use sealwire_records::objects::{
    Index, IndexTerm, ObjectKeys, Property, PropertyName, PropertyType, check,
};
use zeroize::Zeroizing;

const NAMES: usize = 5_000;
const ROWS: usize = 100_000;
/// Flattens the start of the distribution, so that the commonest name has 2.4 % of the rows, as
/// first names have.
const RANK_OFFSET: f64 = 5.0;
/// Deviation of the logarithm of published frequencies from the true ones.
const NOISE: f64 = 0.3;
/// Most weights by which two nodes of the trees are compared.
const COMPARED_MAX: usize = 64;

/// SplitMix64: the figures must not depend on the version of a library.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to 1, without 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Picks an entry. Early ones are more frequent, as letters are in names.
    fn pick<'a>(&mut self, all: &[&'a str]) -> &'a str {
        let at = self.unit().powi(2) * all.len() as f64;
        all[at as usize]
    }

    /// Returns a number of the normal distribution (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Lists synthetic names, commonest first.
fn names(random: &mut Random) -> Vec<String> {
    const STARTS: [&str; 22] = [
        "ma", "ja", "ka", "la", "sa", "da", "ra", "be", "te", "ni", "ch", "sh", "e", "al", "an",
        "jo", "vi", "gu", "o", "pa", "ty", "wi",
    ];
    const MIDDLES: [&str; 18] = [
        "ri", "n", "le", "l", "ne", "mi", "ro", "s", "ta", "de", "vi", "ca", "t", "ga", "be", "ph",
        "lo", "w",
    ];
    const ENDS: [&str; 16] = [
        "a", "n", "e", "ie", "na", "ia", "y", "o", "er", "tte", "is", "us", "elle", "ah", "in",
        "rd",
    ];
    let mut seen = BTreeSet::new();
    let mut names = Vec::with_capacity(NAMES);
    while names.len() < NAMES {
        let mut name = random.pick(&STARTS).to_owned();
        for _ in 0..1 + random.next() % 2 {
            name.push_str(random.pick(&MIDDLES));
        }
        name.push_str(random.pick(&ENDS));
        if seen.insert(name.clone()) {
            names.push(name);
        }
    }
    // Short combinations come early. Their popularity must not depend on that.
    for at in (1..names.len()).rev() {
        names.swap(at, (random.next() % (at as u64 + 1)) as usize);
    }
    names
}

/// Returns the share of each rank, which falls as Zipf's law says.
fn shares(names: usize) -> Vec<f64> {
    let weights: Vec<f64> = (1..=names)
        .map(|rank| 1.0 / (rank as f64 + RANK_OFFSET))
        .collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// Draws rows and counts them per name.
fn draw(shares: &[f64], random: &mut Random) -> Vec<usize> {
    let mut sum = 0.0;
    let limits: Vec<f64> = shares
        .iter()
        .map(|share| {
            sum += share;
            sum
        })
        .collect();
    let mut counts = vec![0; shares.len()];
    for _ in 0..ROWS {
        let unit = random.unit();
        counts[limits
            .partition_point(|limit| *limit <= unit)
            .min(shares.len() - 1)] += 1;
    }
    counts
}

/// A term as the reader sees it, or a name as the reader knows it.
struct Leaf {
    /// The terms of the prefixes, shortest first, or the prefixes.
    path: Vec<u128>,
    /// The term of the value, or the rank of the name.
    id: u128,
    /// Its share of all rows.
    weight: f64,
}

/// Pairs terms with names: level by level, then by rank.
fn assign(terms: &[&Leaf], names: &[&Leaf], level: usize, pairs: &mut Vec<(u128, usize)>) {
    let depth = terms.first().map_or(0, |leaf| leaf.path.len());
    if level == depth {
        let ranked = |leaves: &[&Leaf]| {
            let mut ids: Vec<(f64, u128)> =
                leaves.iter().map(|leaf| (leaf.weight, leaf.id)).collect();
            ids.sort_by(|a, b| b.0.total_cmp(&a.0));
            ids
        };
        pairs.extend(
            ranked(terms)
                .iter()
                .zip(ranked(names))
                .map(|((_, term), (_, name))| (*term, name as usize)),
        );
        return;
    }
    let (terms, names) = (children(terms, level), children(names, level));
    let describe = |nodes: &[Vec<&Leaf>]| {
        nodes
            .iter()
            .map(|node| weights(node, level + 1))
            .collect::<Vec<_>>()
    };
    let (seen, known) = (describe(&terms), describe(&names));
    let mut costs = Vec::with_capacity(seen.len() * known.len());
    for (term, seen) in seen.iter().enumerate() {
        costs.extend(
            known
                .iter()
                .enumerate()
                .map(|(name, known)| (distance(seen, known), term, name)),
        );
    }
    costs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut has_term, mut has_name) = (vec![false; terms.len()], vec![false; names.len()]);
    for (_, term, name) in costs {
        if !has_term[term] && !has_name[name] {
            (has_term[term], has_name[name]) = (true, true);
            assign(&terms[term], &names[name], level + 1, pairs);
        }
    }
}

/// Groups leaves by their prefix at a level.
fn children<'a>(leaves: &[&'a Leaf], level: usize) -> Vec<Vec<&'a Leaf>> {
    let mut groups: BTreeMap<u128, Vec<&Leaf>> = BTreeMap::new();
    leaves
        .iter()
        .for_each(|leaf| groups.entry(leaf.path[level]).or_default().push(leaf));
    groups.into_values().collect()
}

/// Describes a node: its whole weight, the weights of its children, and those of its leaves,
/// largest first. The square roots make random deviations of all weights alike.
fn weights(leaves: &[&Leaf], level: usize) -> [Vec<f64>; 2] {
    let sum = |leaves: &[&Leaf]| leaves.iter().map(|leaf| leaf.weight).sum::<f64>().sqrt();
    let sorted = |mut all: Vec<f64>| {
        all.sort_by(|a, b| b.total_cmp(a));
        all.truncate(COMPARED_MAX);
        all
    };
    let own = sorted(leaves.iter().map(|leaf| leaf.weight.sqrt()).collect());
    let is_inner = leaves[0].path.len() > level;
    let below = if is_inner {
        children(leaves, level)
            .iter()
            .map(|node| sum(node))
            .collect()
    } else {
        vec![sum(leaves)]
    };
    [sorted(below), own]
}

fn distance(seen: &[Vec<f64>; 2], known: &[Vec<f64>; 2]) -> f64 {
    let apart = |(seen, known): (&Vec<f64>, &Vec<f64>)| -> f64 {
        let at = |all: &[f64], at: usize| all.get(at).copied().unwrap_or(0.0);
        (0..seen.len().max(known.len()))
            .map(|i| (at(seen, i) - at(known, i)).powi(2))
            .sum()
    };
    seen.iter().zip(known).map(apart).sum()
}

/// Shares of rows whose name is told, in percent.
#[derive(Debug)]
struct Leakage {
    /// By rank, with the true frequencies.
    exact: f64,
    /// By rank, with noisy frequencies.
    noisy: f64,
    /// By a reader who may also insert or search names.
    searching: f64,
    /// Rows that a search of a name of middling frequency reads per row of that name.
    rows_per_hit: f64,
}

struct World {
    names: Vec<String>,
    counts: Vec<usize>,
    exact: Vec<f64>,
    noisy: Vec<f64>,
}

impl World {
    /// Draws rows with the first names of the list.
    fn new(seed: u64, count: usize) -> Self {
        let (mut names, exact) = (names(&mut Random(1)), shares(count));
        names.truncate(count);
        let mut random = Random(seed);
        let counts = draw(&exact, &mut random);
        let noisy = exact
            .iter()
            .map(|share| share * (NOISE * random.normal()).exp())
            .collect();
        Self {
            names,
            counts,
            exact,
            noisy,
        }
    }

    fn leakage(&self, bits: Option<u8>, prefixes: &[u8]) -> Leakage {
        let index = Index {
            number: 2,
            bits,
            prefixes: prefixes.to_vec(),
            was_unique: false,
        };
        let property = Property {
            number: 1,
            name: PropertyName::new("name").unwrap(),
            property_type: PropertyType::Name,
            nullable: false,
            unique: false,
            index: Some(index),
            encrypted: true,
            description: String::new(),
        };
        let keys = ObjectKeys::new(7, &Zeroizing::new([7; 32]));
        let terms: Vec<Vec<IndexTerm>> = self
            .names
            .iter()
            .map(|name| terms(&keys, &property, name))
            .collect();
        assert!(
            terms.iter().all(|terms| terms.len() == 1 + prefixes.len()),
            "every name has all prefixes"
        );
        let searching = self.told_to_searcher(&terms);
        let told = |published| self.told(&terms, prefixes, published);
        Leakage {
            exact: told(&self.exact),
            noisy: told(&self.noisy),
            searching,
            rows_per_hit: self.rows_per_hit(&terms),
        }
    }

    /// Returns the percentage of rows that a reader names by published frequencies.
    fn told(&self, terms: &[Vec<IndexTerm>], prefixes: &[u8], published: &[f64]) -> f64 {
        let mut seen: BTreeMap<u128, Leaf> = BTreeMap::new();
        for (terms, count) in terms
            .iter()
            .zip(&self.counts)
            .filter(|(_, count)| **count > 0)
        {
            let path = terms[1..].iter().map(hash).collect();
            let id = hash(&terms[0]);
            let leaf = seen.entry(id).or_insert(Leaf {
                path,
                id,
                weight: 0.0,
            });
            leaf.weight += *count as f64 / ROWS as f64;
        }
        let known = |(at, name): (usize, &String)| Leaf {
            path: prefixes
                .iter()
                .map(|chars| spelt(&name[..usize::from(*chars)]))
                .collect(),
            id: at as u128,
            weight: published[at],
        };
        let known: Vec<Leaf> = self.names.iter().enumerate().map(known).collect();
        let mut pairs = Vec::new();
        assign(
            &seen.values().collect::<Vec<_>>(),
            &known.iter().collect::<Vec<_>>(),
            0,
            &mut pairs,
        );
        let is_right = |(term, name): &&(u128, usize)| hash(&terms[*name][0]) == *term;
        percent(
            pairs
                .iter()
                .filter(is_right)
                .map(|(_, name)| self.counts[*name])
                .sum(),
        )
    }

    /// Returns the percentage for a reader who knows the terms of all names, and names the
    /// commonest of each term.
    fn told_to_searcher(&self, terms: &[Vec<IndexTerm>]) -> f64 {
        let mut named = BTreeMap::new();
        for (terms, count) in terms.iter().zip(&self.counts) {
            named.entry(hash(&terms[0])).or_insert(*count);
        }
        percent(named.values().sum())
    }

    /// Returns the rows with the terms of names of middling frequency (ranks 401 to 600 of 5,000),
    /// per row of those names.
    fn rows_per_hit(&self, terms: &[Vec<IndexTerm>]) -> f64 {
        let with_term = |term: &IndexTerm| -> usize {
            terms
                .iter()
                .zip(&self.counts)
                .filter(|(of, _)| of[0] == *term)
                .map(|(_, count)| count)
                .sum()
        };
        let middle = self.names.len() * 2 / 25..self.names.len() * 3 / 25;
        let read: usize = terms[middle.clone()]
            .iter()
            .map(|terms| with_term(&terms[0]))
            .sum();
        read as f64 / self.counts[middle].iter().sum::<usize>() as f64
    }
}

fn terms(keys: &ObjectKeys, property: &Property, name: &str) -> Vec<IndexTerm> {
    let raw = [&[0xa0 | name.len() as u8], name.as_bytes()].concat();
    keys.terms_of(3, property, &check(PropertyType::Name, &raw).unwrap())
}

fn hash(term: &IndexTerm) -> u128 {
    u128::from_be_bytes(term.hash)
}

/// Packs the characters of a prefix.
fn spelt(prefix: &str) -> u128 {
    prefix
        .bytes()
        .fold(0, |all, byte| all << 8 | u128::from(byte))
}

fn percent(rows: usize) -> f64 {
    100.0 * rows as f64 / ROWS as f64
}

impl Leakage {
    /// Returns the medians of three.
    fn median(all: [Self; 3]) -> Self {
        let median = |of: fn(&Self) -> f64| {
            let mut values = all.each_ref().map(of);
            values.sort_by(f64::total_cmp);
            values[1]
        };
        Self {
            exact: median(|of| of.exact),
            noisy: median(|of| of.noisy),
            searching: median(|of| of.searching),
            rows_per_hit: median(|of| of.rows_per_hit),
        }
    }
}

#[test]
fn prefixes_reveal_most_and_few_bits_least() {
    let worlds = [1, 2, 3].map(|seed| World::new(seed, NAMES));
    let enumerations = [1, 2, 3].map(|seed| World::new(seed, 50));
    type Setting<'a> = (&'a str, &'a [World; 3], Option<u8>, &'a [u8]);
    let settings: [Setting<'_>; 7] = [
        ("128 bits", &worlds, None, &[]),
        ("12 bits", &worlds, Some(12), &[]),
        ("10 bits", &worlds, Some(10), &[]),
        ("8 bits", &worlds, Some(8), &[]),
        ("128 bits, prefix 3", &worlds, None, &[3]),
        ("128 bits, prefixes 1, 2, 3", &worlds, None, &[1, 2, 3]),
        (
            "128 bits, only 50 different values",
            &enumerations,
            None,
            &[],
        ),
    ];
    println!(
        "| index | rows named, % | with noise, % | may insert or search, % | rows read per hit |"
    );
    println!("| --- | --- | --- | --- | --- |");
    let [full, bits12, bits10, bits8, prefix3, prefixes, few] =
        settings.map(|(name, worlds, bits, prefixes)| {
            let told =
                Leakage::median(worlds.each_ref().map(|world| world.leakage(bits, prefixes)));
            let Leakage {
                exact,
                noisy,
                searching,
                rows_per_hit,
            } = told;
            println!("| {name} | {exact:.0} | {noisy:.0} | {searching:.0} | {rows_per_hit:.1} |");
            told
        });
    // Prefixes undo what the rank of a name hides.
    assert!(
        prefixes.exact > 60.0 && prefixes.noisy > 40.0,
        "{prefixes:?}"
    );
    assert!(prefix3.exact > 50.0 && prefix3.noisy > 30.0, "{prefix3:?}");
    assert!(
        prefixes.noisy > prefix3.noisy && prefix3.noisy > 5.0 * full.noisy,
        "{prefix3:?} {full:?}"
    );
    assert!(
        (10.0..40.0).contains(&full.exact) && full.noisy < 10.0,
        "{full:?}"
    );
    // Few bits blur ranks, at a price for every search.
    assert!(
        full.exact + 5.0 > bits12.exact
            && bits12.exact > bits10.exact
            && bits10.exact > bits8.exact,
        "{bits10:?}"
    );
    assert!(bits8.exact < 10.0, "{bits8:?}");
    assert!(
        full.rows_per_hit < bits12.rows_per_hit && bits12.rows_per_hit < bits10.rows_per_hit,
        "{bits12:?}"
    );
    assert!(bits10.rows_per_hit < bits8.rows_per_hit, "{bits8:?}");
    // They blur little for a reader who may try names.
    assert!((full.searching - 100.0).abs() < 1e-9 && (prefixes.searching - 100.0).abs() < 1e-9);
    assert!(
        bits12.searching > bits10.searching && bits10.searching > bits8.searching,
        "{bits12:?} {bits10:?}"
    );
    assert!(bits8.searching > 35.0, "{bits8:?}");
    // Ranks of few values are far apart.
    assert!(few.exact > 2.0 * full.exact, "{few:?}");
}

//! Declares metrics. From one declaration, [`metrics!`](crate::metrics!) generates the field, the
//! registration, the help text and the row of the reference.

use std::fmt::Write;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::{self, Counter};
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::{self, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

/// A gauge with a fractional value.
pub type Gauge64 = Gauge<f64, AtomicU64>;
/// A counter of seconds.
pub type Seconds = Counter<f64, AtomicU64>;

/// A metric as the reference lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricDoc {
    /// Name of the metric as scraped, without the suffixes of a histogram.
    pub name: &'static str,
    /// Type of the metric: `counter`, `gauge`, `histogram` or `info`.
    pub kind: &'static str,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// Help text of the metric.
    pub help: &'static str,
}

/// Returns the rows of a Markdown table of metrics: name, type, unit, labels, meaning.
pub fn rows(metrics: &[MetricDoc]) -> String {
    let mut text = String::new();
    for metric in metrics {
        let labels: Vec<_> = metric
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            metric.name,
            metric.kind,
            unit(metric.name),
            labels.join(", "),
            metric.help
        );
    }
    text
}

/// Returns the unit of a metric, from a word of its name.
fn unit(name: &str) -> &'static str {
    let units = [
        ("seconds", "s"),
        ("bytes", "bytes"),
        ("ratio", "ratio"),
        ("rows", "rows"),
    ];
    let said = units
        .iter()
        .find(|(word, _)| name.split('_').any(|part| part == *word));
    said.map_or("count", |(_, unit)| unit)
}

/// Declaration of a field of [`metrics!`](crate::metrics!). The name is empty if the field is not a
/// metric.
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// Name of the metric as scraped.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// Upper bounds of the buckets of a histogram.
    pub buckets: &'static [f64],
}

/// A registry of declared metrics.
#[derive(Debug, Default)]
pub struct Registrar {
    registry: Registry,
    announces_units: bool,
}

impl Registrar {
    /// Creates a registry that announces a metric's unit if the metric's name ends with it.
    pub fn with_units() -> Self {
        Self {
            registry: Registry::default(),
            announces_units: true,
        }
    }

    /// Returns the registry with all metrics that were declared.
    pub fn finish(self) -> Registry {
        self.registry
    }

    /// Registers a metric. The encoder adds the suffixes and units that are removed here.
    fn register(&mut self, declaration: &Declaration, metric: impl Metric) {
        let Declaration { name, help, .. } = *declaration;
        let name = ["_total", "_info"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .unwrap_or(name);
        match name.rsplit_once('_').filter(|_| self.announces_units) {
            Some((stem, "seconds")) => {
                self.registry
                    .register_with_unit(stem, help, Unit::Seconds, metric);
            }
            Some((stem, "bytes")) => {
                self.registry
                    .register_with_unit(stem, help, Unit::Bytes, metric);
            }
            _ => self.registry.register(name, help, metric),
        }
    }
}

/// The type of a field of [`metrics!`](crate::metrics!).
pub trait Declare: Sized {
    /// Lists the metrics of the field.
    fn list(declaration: &Declaration, docs: &mut Vec<MetricDoc>);

    /// Creates the field and registers its metrics.
    fn declare(registrar: &mut Registrar, declaration: &Declaration) -> Self;
}

/// A metric type of `prometheus_client` that [`metrics!`](crate::metrics!) can create.
pub trait Series: Metric + Clone {
    /// `counter`, `gauge` or `histogram`.
    const KIND: &'static str;
    /// Names of the labels.
    const LABELS: &'static [&'static str] = &[];

    /// Creates the metric, at zero.
    fn create(buckets: &'static [f64]) -> Self;
}

impl<M: Series> Declare for M {
    fn list(declaration: &Declaration, docs: &mut Vec<MetricDoc>) {
        docs.push(MetricDoc {
            name: declaration.name,
            kind: M::KIND,
            labels: M::LABELS,
            help: declaration.help,
        });
    }

    fn declare(registrar: &mut Registrar, declaration: &Declaration) -> Self {
        let metric = M::create(declaration.buckets);
        registrar.register(declaration, metric.clone());
        metric
    }
}

impl<N, A> Series for Counter<N, A>
where
    N: prometheus_client::encoding::EncodeCounterValue + Send + Sync + std::fmt::Debug + 'static,
    A: counter::Atomic<N> + Default + Send + Sync + std::fmt::Debug + 'static,
{
    const KIND: &'static str = "counter";

    fn create(_: &'static [f64]) -> Self {
        Self::default()
    }
}

impl<N, A> Series for Gauge<N, A>
where
    N: prometheus_client::encoding::EncodeGaugeValue + Send + Sync + std::fmt::Debug + 'static,
    A: gauge::Atomic<N> + Default + Send + Sync + std::fmt::Debug + 'static,
{
    const KIND: &'static str = "gauge";

    fn create(_: &'static [f64]) -> Self {
        Self::default()
    }
}

impl Series for Histogram {
    const KIND: &'static str = "histogram";

    fn create(buckets: &'static [f64]) -> Self {
        Self::new(buckets.iter().copied())
    }
}

/// Creates the series of a family, with these buckets if they are histograms.
#[derive(Clone, Copy, Debug)]
pub struct Create(&'static [f64]);

impl<M: Series> MetricConstructor<M> for Create {
    fn new_metric(&self) -> M {
        M::create(self.0)
    }
}

/// Series that are created when their labels are first used.
pub type OpenFamily<S, M> = Family<S, M, Create>;

/// Labels that [`label_set!`](crate::label_set!) declares.
pub trait LabelSet:
    EncodeLabelSet + Clone + Eq + std::hash::Hash + Send + Sync + std::fmt::Debug + 'static
{
    /// Names of the labels.
    const NAMES: &'static [&'static str];
}

impl<S: LabelSet, M: Series + prometheus_client::metrics::TypedMetric> Series for OpenFamily<S, M> {
    const KIND: &'static str = M::KIND;
    const LABELS: &'static [&'static str] = S::NAMES;

    fn create(buckets: &'static [f64]) -> Self {
        Self::new_with_constructor(Create(buckets))
    }
}

/// Labels whose values are known at compile time.
pub trait Labels {
    /// Names of the labels.
    const NAMES: &'static [&'static str];
    /// Number of combinations of values.
    const COUNT: usize;

    /// Position of these values among all combinations.
    fn index(self) -> usize;

    /// Values of the combination at a position.
    fn values(index: usize) -> Vec<&'static str>;
}

impl<A: Labels, B: Labels> Labels for (A, B) {
    const NAMES: &'static [&'static str] = &[A::NAMES[0], B::NAMES[0]];
    const COUNT: usize = A::COUNT * B::COUNT;

    fn index(self) -> usize {
        self.0.index() * B::COUNT + self.1.index()
    }

    fn values(index: usize) -> Vec<&'static str> {
        [A::values(index / B::COUNT), B::values(index % B::COUNT)].concat()
    }
}

/// A series for each combination of closed labels. Every series exists from the start and is
/// accessed without a map lookup.
#[derive(Debug)]
pub struct ByLabel<L, M>(Box<[M]>, PhantomData<fn(L)>);

impl<L, M: Clone> Clone for ByLabel<L, M> {
    /// Shares the series with the clone.
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<L: Labels, M> ByLabel<L, M> {
    /// Returns the series of these labels.
    pub fn of(&self, labels: L) -> &M {
        &self.0[labels.index()]
    }

    /// Returns every series, in the order of the values.
    pub fn iter(&self) -> std::slice::Iter<'_, M> {
        self.0.iter()
    }
}

impl<L: Labels, M: Series> Default for ByLabel<L, M> {
    /// Creates series that are not registered.
    fn default() -> Self {
        Self((0..L::COUNT).map(|_| M::create(&[])).collect(), PhantomData)
    }
}

impl<L: Labels, M: Series + prometheus_client::metrics::TypedMetric> Declare for ByLabel<L, M> {
    fn list(declaration: &Declaration, docs: &mut Vec<MetricDoc>) {
        docs.push(MetricDoc {
            name: declaration.name,
            kind: M::KIND,
            labels: L::NAMES,
            help: declaration.help,
        });
    }

    fn declare(registrar: &mut Registrar, declaration: &Declaration) -> Self {
        type Pairs = Vec<(&'static str, &'static str)>;
        let family = Family::<Pairs, M, Create>::new_with_constructor(Create(declaration.buckets));
        registrar.register(declaration, family.clone());
        let series = (0..L::COUNT).map(|index| {
            let pairs = L::NAMES.iter().copied().zip(L::values(index)).collect();
            family.get_or_create_owned(&pairs)
        });
        Self(series.collect(), PhantomData)
    }
}

/// The version of the program, as a metric.
#[derive(Debug)]
pub struct BuildInfo;

impl Declare for BuildInfo {
    fn list(declaration: &Declaration, docs: &mut Vec<MetricDoc>) {
        docs.push(MetricDoc {
            name: declaration.name,
            kind: "info",
            labels: &["version"],
            help: declaration.help,
        });
    }

    fn declare(registrar: &mut Registrar, declaration: &Declaration) -> Self {
        // The version of this crate is the version of the program, since all crates share the
        // version of the workspace.
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registrar.register(declaration, Info::new(version));
        Self
    }
}

/// A field of a struct of metrics that is not a metric. `Default` creates it.
#[derive(Debug, Default)]
pub struct State<T>(pub T);

impl<T: Default> Declare for State<T> {
    fn list(_: &Declaration, _: &mut Vec<MetricDoc>) {}

    fn declare(_: &mut Registrar, _: &Declaration) -> Self {
        Self::default()
    }
}

impl<T> Deref for State<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for State<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A function that is called at each scrape after it was set.
pub struct Probe<T>(OnceLock<Box<dyn Fn() -> T + Send + Sync>>);

impl<T> Probe<T> {
    /// Sets the function. Only the first call has an effect.
    pub fn watch(&self, read: Box<dyn Fn() -> T + Send + Sync>) {
        let _ = self.0.set(read);
    }

    /// Calls the function, if it was set.
    pub fn read(&self) -> Option<T> {
        self.0.get().map(|read| read())
    }
}

impl<T> Default for Probe<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

/// Declares a struct of metrics. The comment of a field is the metric's help text. The text after
/// the field's type is the name as scraped, which the buckets of a histogram follow. A field
/// without a name is another such struct, or is not a metric.
#[macro_export]
macro_rules! metrics {
    ($(#[$meta:meta])* $vis:vis struct $metrics:ident {
        $($(#[doc = $doc:literal])+
        $field_vis:vis $field:ident: $type:ty $(= $name:literal $(, $buckets:expr)?)?;)+
    }) => {
        $(#[$meta])*
        $vis struct $metrics {
            $($(#[doc = $doc])+ $field_vis $field: $type,)+
        }

        impl $crate::metrics::Declare for $metrics {
            fn list(_: &$crate::metrics::Declaration, docs: &mut Vec<$crate::metrics::MetricDoc>) {
                $(<$type as $crate::metrics::Declare>::list(
                    &$crate::declaration!([$($doc)+] $($name $(, $buckets)?)?),
                    docs,
                );)+
            }

            fn declare(
                registrar: &mut $crate::metrics::Registrar,
                _: &$crate::metrics::Declaration,
            ) -> Self {
                Self {
                    $($field: <$type as $crate::metrics::Declare>::declare(
                        registrar,
                        &$crate::declaration!([$($doc)+] $($name $(, $buckets)?)?),
                    ),)+
                }
            }
        }

        impl $metrics {
            /// Lists the metrics, in the order of their declaration.
            #[allow(dead_code, reason = "a struct inside another is listed by that one")]
            $vis fn docs() -> Vec<$crate::metrics::MetricDoc> {
                let mut docs = Vec::new();
                <Self as $crate::metrics::Declare>::list(&$crate::declaration!([""]), &mut docs);
                docs
            }

            /// Creates the metrics and registers them.
            #[allow(dead_code, reason = "a struct inside another is registered by that one")]
            fn register(registrar: &mut $crate::metrics::Registrar) -> Self {
                <Self as $crate::metrics::Declare>::declare(registrar, &$crate::declaration!([""]))
            }
        }
    };
}

/// The [`Declaration`] of one field. Only for use in [`metrics!`](crate::metrics!).
#[doc(hidden)]
#[macro_export]
macro_rules! declaration {
    ([$($doc:literal)+] $($name:literal $(, $buckets:expr)?)?) => {
        $crate::metrics::Declaration {
            name: concat!("" $(, $name)?),
            help: concat!($($doc),+).trim_ascii_start(),
            buckets: [$($(&$buckets as &'static [f64],)?)? &[]][0],
        }
    };
}

/// Declares a struct of labels whose values are not known at the start.
#[macro_export]
macro_rules! label_set {
    ($(struct $set:ident { $($label:ident: $type:ty),+ $(,)? })+) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash, prometheus_client::encoding::EncodeLabelSet)]
        struct $set { $($label: $type),+ }

        impl $crate::metrics::LabelSet for $set {
            const NAMES: &'static [&'static str] = &[$(stringify!($label)),+];
        }
    )+};
}

/// Declares a closed set of values of a label, with the label's name.
#[macro_export]
macro_rules! label {
    ($(#[$meta:meta])* $vis:vis enum $label:ident = $name:literal {
        $($(#[$value_meta:meta])* $value:ident = $text:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $label { $($(#[$value_meta])* $value,)+ }

        impl $label {
            /// Every value, in the order of declaration.
            $vis const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// The text of the label.
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }

        impl $crate::metrics::Labels for $label {
            const NAMES: &'static [&'static str] = &[$name];
            const COUNT: usize = Self::ALL.len();

            fn index(self) -> usize {
                self as usize
            }

            fn values(index: usize) -> Vec<&'static str> {
                vec![Self::ALL[index].as_str()]
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::label! {
        /// A label.
        enum Outcome = "outcome" {
            /// A value.
            Ok = "ok",
            /// A value.
            Failed = "failed",
        }
    }

    crate::label! {
        enum Direction = "direction" {
            In = "in",
            Out = "out",
        }
    }

    crate::label_set! {
        struct Named { name: String, kind: &'static str }
    }

    crate::metrics! {
        struct Inner {
            /// Bytes that
            /// crossed
            bytes: ByLabel<(Direction, Outcome), Counter> = "test_bytes_total";
        }
    }

    crate::metrics! {
        /// Metrics.
        struct Outer {
            /// Requests
            requests: ByLabel<Outcome, Counter> = "test_requests_total";
            /// No metric.
            inner: Inner;
            /// Time of requests
            seconds: OpenFamily<Named, Histogram> = "test_request_seconds", [0.5, 1.0];
            /// No metric.
            started: State<Vec<u8>>;
            /// Version
            _build: BuildInfo = "test_build_info";
        }
    }

    #[test]
    fn declared_metrics_are_listed_registered_and_counted() {
        let docs = Outer::docs();
        assert_eq!(
            rows(&docs),
            "| `test_requests_total` | counter | count | `outcome` | Requests |\n\
             | `test_bytes_total` | counter | bytes | `direction`, `outcome` | Bytes that crossed |\n\
             | `test_request_seconds` | histogram | s | `name`, `kind` | Time of requests |\n\
             | `test_build_info` | info | count | `version` | Version |\n"
        );
        let mut registrar = Registrar::with_units();
        let metrics = Outer::register(&mut registrar);
        metrics.requests.of(Outcome::Failed).inc();
        metrics
            .inner
            .bytes
            .of((Direction::Out, Outcome::Ok))
            .inc_by(7);
        let labels = Named {
            name: "a".into(),
            kind: "b",
        };
        metrics.seconds.get_or_create(&labels).observe(0.7);
        assert!(metrics.started.is_empty());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registrar.finish()).unwrap();
        for line in [
            "# HELP test_requests Requests.\n",
            "# TYPE test_bytes counter\n# UNIT test_bytes bytes\n",
            "test_requests_total{outcome=\"ok\"} 0\n",
            "test_requests_total{outcome=\"failed\"} 1\n",
            "test_bytes_total{direction=\"out\",outcome=\"ok\"} 7\n",
            "test_bytes_total{direction=\"in\",outcome=\"failed\"} 0\n",
            "test_request_seconds_bucket{le=\"0.5\",name=\"a\",kind=\"b\"} 0\n",
            "test_request_seconds_bucket{le=\"1.0\",name=\"a\",kind=\"b\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn units_are_those_of_the_names() {
        for (name, expected) in [
            ("sealwire_request_queue_seconds", "s"),
            ("sealwire_cpu_saved_seconds_total", "s"),
            ("sealwire_reply_bytes_total", "bytes"),
            ("sealwire_bytes_in_flight", "bytes"),
            ("sealwire_speed_ratio", "ratio"),
            ("sealwire_requests_total", "count"),
        ] {
            assert_eq!(unit(name), expected, "{name}");
        }
    }
}

//! `dear`: latency and rate of one client beside another principal whose `mask` requests take much
//! time for their size.
//!
//! The neighbour sends small requests at a steady rate. It is measured alone, beside an honest
//! load, and beside each kind of dear request. The honest load is `encrypt` requests that take as
//! long as the dear one, on as many connections. All of that is one run on one engine. Rejected
//! requests are repeated after the time that the engine names.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use sealwire_benches::document::{APP, document};
use sealwire_benches::stats::Summary;
use sealwire_benches::{is_smoke_run, say};
use sealwire_msgpack::write;
use sealwire_wire::{
    Encrypt, Limits, Mask, MaskRule, Masking, Reply, RuleFields, Scan, Scanner, UnknownFields,
    request,
};

use crate::child::Folder;
use crate::fair::connection::identity;
use crate::neighbour::{HANG, MeasuredEngine, named_program, ratio_cells};

const HELP: &str = "\
What a client feels of another principal whose mask requests are dear for their size.

    cargo bench -p sealwire-benches --bench engine -- dear [OPTIONS]

    --program PATH   A release build of `sealwire` to measure, instead of the engine of this program. Can be repeated:
                     each is measured in turn. `this` is the engine of this program.
    --connections N  Connections of the dear and of the honest load; 4 by default.
    --rate N         Requests of the neighbour per second; 1,000 by default.
    --seconds N      Of each window; 5 by default.
    --help           This.

A ratio is a figure beside dear requests, divided by that beside the honest load; of the rate, the inverse. 1.5 is the
limit.
";

/// Fields of the request by which the size of the honest one is chosen.
const HONEST_FIELDS: usize = 2_000;

struct Options {
    programs: Vec<Option<PathBuf>>,
    connections: usize,
    per_s: f64,
    time: Duration,
}

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    if arguments
        .iter()
        .any(|argument| argument == "--help" || argument == "-h")
    {
        return write!(io::stdout(), "{HELP}");
    }
    let options = options(arguments)
        .map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    let folder = Folder::make_for_earlier_versions(&["neighbour", "honest", "dear"])?;
    for program in &options.programs {
        let engine = MeasuredEngine::start(&folder, program.as_ref())?;
        measure(&options, &folder, &engine)?;
    }
    Ok(())
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        programs: Vec::new(),
        connections: if is_smoke_run() { 1 } else { 4 },
        per_s: 1_000.0,
        time: Duration::from_millis(if is_smoke_run() { 20 } else { 5_000 }),
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: &String| {
            text.parse::<f64>()
                .map_err(|_| format!("{argument} is a number"))
        };
        match argument.as_str() {
            "--program" => options.programs.push(named_program(value()?.as_str())),
            "--connections" => options.connections = number(value()?)? as usize,
            "--rate" => options.per_s = number(value()?)?.max(1.0),
            "--seconds" => {
                options.time = Duration::try_from_secs_f64(number(value()?)?)
                    .map_err(|error| error.to_string())?;
            }
            other => return Err(format!("{other} is not an option")),
        }
    }
    if options.programs.is_empty() {
        options.programs.push(None);
    }
    Ok(options)
}

/// Returns the dear requests, by name.
fn dear() -> Vec<(&'static str, Vec<u8>)> {
    let names = |what: &str, count: usize| -> Vec<String> {
        (0..count).map(|at| format!("{what}{at}")).collect()
    };
    let (columns, subjects) = (names("d", 250), names("s", 250));
    let masks: Vec<String> = subjects
        .iter()
        .map(|subject| format!("date_shift(within=30, subject={subject})"))
        .collect();
    let with_subject = |count: usize| -> Vec<MaskRule<'_>> {
        let rules = columns.iter().zip(&masks).take(count);
        rules
            .map(|(column, mask)| MaskRule {
                fields: RuleFields::Column(column),
                mask,
            })
            .collect()
    };
    let kinds = |kinds: &[&'static str], count: usize| -> Vec<MaskRule<'static>> {
        let rules = kinds.iter().cycle().take(count);
        rules
            .map(|&kind| MaskRule {
                fields: RuleFields::Kind(kind),
                mask: "redact",
            })
            .collect()
    };
    let all = [
        "card",
        "email",
        "iban",
        "phone",
        "national_id",
        "ip_address",
        "secret",
    ];
    vec![
        (
            "250 rules with subjects over maps that share filler",
            mask(with_subject(250), &nested(4, 250, 40_000)),
        ),
        (
            "1 rule with a subject over 50 maps that share filler",
            mask(with_subject(1), &nested(50, 1, 60_000)),
        ),
        (
            "256 rules of one kind",
            mask(kinds(&["card"], 256), &texts(256, &"7 ".repeat(64))),
        ),
        (
            "7 kinds, long strings",
            mask(kinds(&all, 7), &texts(256, &"7".repeat(320))),
        ),
        (
            "fpe",
            mask(
                vec![MaskRule {
                    fields: RuleFields::Path("$[*]"),
                    mask: "fpe",
                }],
                &texts(256, &"7".repeat(48)),
            ),
        ),
    ]
}

fn mask(rules: Vec<MaskRule<'_>>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let writing = Masking {
        rules,
        unknown: UnknownFields::Keep,
        lists: Vec::new(),
    };
    request::mask(
        &mut bytes,
        0x8000_0000,
        &Mask {
            writing,
            ..Mask::new(APP, payload)
        },
    );
    bytes
}

fn encrypt(fields: usize) -> Vec<u8> {
    let (payload, mut bytes) = (document(fields.max(1)), Vec::new());
    request::encrypt(&mut bytes, 0x8000_0000, &Encrypt::new(APP, &payload));
    bytes
}

fn texts(count: u32, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write::array_len(&mut out, count);
    (0..count).for_each(|_| write::str(&mut out, text));
    out
}

/// Maps inside each other with a date for every rule, then filler, then the subjects.
fn nested(depth: u32, rules: u32, filler: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..depth {
        write::map_len(&mut out, 2 * rules + 1);
        for rule in 0..rules {
            write::str(&mut out, &format!("d{rule}"));
            write::str(&mut out, "2000-01-15");
        }
        write::str(&mut out, "in");
    }
    write::array_len(&mut out, filler);
    (0..filler).for_each(|_| write::uint(&mut out, 1));
    for _ in 0..depth {
        for rule in 0..rules {
            write::str(&mut out, &format!("s{rule}"));
            write::uint(&mut out, 1);
        }
    }
    out
}

/// A client with one request at a time.
struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
    scanner: Scanner,
    request: Vec<u8>,
    msgid: u32,
    input: Vec<u8>,
}

impl Client {
    fn connect(
        folder: &Folder,
        engine: &MeasuredEngine,
        principal: &str,
        request: &[u8],
    ) -> io::Result<Self> {
        let socket = TcpStream::connect(engine.address)?;
        socket.set_read_timeout(Some(HANG))?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let tls = ClientConnection::new(identity(folder.path(), principal)?, name)
            .map_err(io::Error::other)?;
        let (stream, scanner) = (
            StreamOwned::new(tls, socket),
            Scanner::for_replies(Limits::default()),
        );
        Ok(Self {
            stream,
            scanner,
            request: request.to_vec(),
            msgid: 0x8000_0000,
            input: Vec::new(),
        })
    }

    /// Sends the request. Returns how long to wait if it is rejected.
    fn call(&mut self) -> io::Result<Option<Duration>> {
        self.msgid = self.msgid.wrapping_add(1) | 0x8000_0000;
        self.request[3..7].copy_from_slice(&self.msgid.to_be_bytes());
        self.stream.write_all(&self.request)?;
        self.stream.flush()?;
        let mut scratch = [0; 64 << 10];
        loop {
            match self.scanner.scan(&self.input) {
                Scan::Incomplete => {
                    let read = self.stream.read(&mut scratch)?;
                    if read == 0 {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    self.input.extend_from_slice(&scratch[..read]);
                }
                Scan::Message(boundary) => {
                    let reply =
                        Reply::decode(&self.input[..boundary.bytes]).map_err(io::Error::other)?;
                    let wait = match reply.outcome {
                        Ok(_) => None,
                        Err(error) => match error.retry_after_ms {
                            Some(ms) => Some(Duration::from_millis(ms.into())),
                            None => return Err(io::Error::other(error.message.to_string())),
                        },
                    };
                    self.input.drain(..boundary.bytes);
                    return Ok(wait);
                }
                Scan::Refused { .. } | Scan::Discard { .. } => {
                    return Err(io::Error::other("not a response"));
                }
            }
        }
    }

    /// Returns the least time of a few requests, in milliseconds.
    fn least(&mut self) -> io::Result<f64> {
        (0..5).try_fold(f64::INFINITY, |least, _| {
            let began = Instant::now();
            self.call()?;
            Ok(least.min(began.elapsed().as_secs_f64() * 1e3))
        })
    }
}

/// Figures of the neighbour in one window.
#[derive(Clone, Copy)]
struct Figures {
    latency: Summary,
    per_s: f64,
    rejected: usize,
}

/// Sends requests at a steady rate for so long. The latency counts from the time at which a request
/// is due.
fn window(neighbour: &mut Client, per_s: f64, time: Duration) -> io::Result<Figures> {
    let (begun, mut due) = (Instant::now(), Instant::now());
    let (mut latencies, mut rejected) = (Vec::new(), 0);
    while begun.elapsed() < time {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        match neighbour.call()? {
            None => latencies.push(due.elapsed().as_secs_f64() * 1e3),
            Some(wait) => {
                rejected += 1;
                thread::sleep(wait.min(time));
                due = Instant::now();
            }
        }
        // What could not be sent in time is not sent later.
        due = (due + Duration::from_secs_f64(1.0 / per_s)).max(Instant::now());
    }
    let per_s = latencies.len() as f64 / begun.elapsed().as_secs_f64();
    if latencies.is_empty() {
        latencies.push(time.as_secs_f64() * 1e3);
    }
    Ok(Figures {
        latency: Summary::of(latencies),
        per_s,
        rejected,
    })
}

/// Measures the neighbour beside clients that send a request again and again. Also returns their
/// requests per second.
fn beside(
    options: &Options,
    neighbour: &mut Client,
    clients: Vec<Client>,
) -> io::Result<(Figures, f64)> {
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let figures = thread::scope(|scope| {
        for mut client in clients {
            let (stop, sent) = (&stop, &sent);
            scope.spawn(move || {
                // Of this thread: the lowest.
                let _ = rustix::process::setpriority_process(None, 19);
                while !stop.load(Ordering::Relaxed) {
                    match client.call() {
                        Ok(None) => {
                            sent.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(Some(wait)) => thread::sleep(wait.min(Duration::from_millis(100))),
                        Err(_) => return,
                    }
                }
            });
        }
        let figures = window(neighbour, options.per_s, options.time / 4).and_then(|_| {
            sent.store(0, Ordering::Relaxed);
            window(neighbour, options.per_s, options.time)
        });
        let done = sent.load(Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        figures.map(|figures| (figures, done as f64 / options.time.as_secs_f64()))
    });
    // What is left of the load is not for the next one.
    window(neighbour, options.per_s, options.time / 4)?;
    figures
}

fn measure(options: &Options, folder: &Folder, engine: &MeasuredEngine) -> io::Result<()> {
    let smoke = is_smoke_run();
    let print = |line: &str| if smoke { Ok(()) } else { say(line) };
    let mut neighbour = Client::connect(folder, engine, "neighbour", &encrypt(1))?;
    window(&mut neighbour, options.per_s, options.time / 4)?;
    let alone = window(&mut neighbour, options.per_s, options.time)?;
    print(&format!("Engine: {}\n", engine.name))?;
    print(
        "| beside | ms each | per s | neighbour per s | rejected | p50 ms | p99 ms | rate ratio | p50 ratio | p99 ratio |",
    )?;
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")?;
    print(&row("nobody", 0.0, 0.0, alone, None))?;
    for (name, request) in dear() {
        let each = Client::connect(folder, engine, "dear", &request)?.least()?;
        let unit = Client::connect(folder, engine, "honest", &encrypt(HONEST_FIELDS))?.least()?;
        let fields = (HONEST_FIELDS as f64 * each / unit) as usize;
        let clients = |principal: &str, request: &[u8]| -> io::Result<Vec<Client>> {
            (0..options.connections)
                .map(|_| Client::connect(folder, engine, principal, request))
                .collect()
        };
        let fields = fields.clamp(1, 50_000);
        let (honest, per_s) = beside(
            options,
            &mut neighbour,
            clients("honest", &encrypt(fields))?,
        )?;
        print(&row(
            &format!("encrypt of {fields} fields"),
            each,
            per_s,
            honest,
            None,
        ))?;
        let (figures, per_s) = beside(options, &mut neighbour, clients("dear", &request)?)?;
        print(&row(name, each, per_s, figures, Some(honest)))?;
    }
    print("")
}

fn row(name: &str, each: f64, load: f64, figures: Figures, honest: Option<Figures>) -> String {
    let Figures {
        latency,
        per_s,
        rejected,
    } = figures;
    let ratios = honest.map(|honest| {
        [
            honest.per_s / per_s.max(1e-9),
            latency.p50 / honest.latency.p50,
            latency.p99 / honest.latency.p99,
        ]
    });
    format!(
        "| {name} | {each:.2} | {load:.0} | {per_s:.0} | {rejected} | {:.3} | {:.3} | {} |",
        latency.p50,
        latency.p99,
        ratio_cells(ratios)
    )
}

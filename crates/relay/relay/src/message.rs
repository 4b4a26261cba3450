//! Applies the body rules of one direction to one body. Chooses format and coding, and whether the
//! body is held or streamed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use sealwire_relay_body::{Format, RuleSet};
use tokio::time::timeout;

use crate::body::{self, Outgoing, Source};
use crate::coding::Decoder;
use crate::edit::{Editor, Extent};
use crate::engine::{Scope, join_frames};
use crate::error::{Failure, Phase, Reason};
use crate::memory::{Account, Reservation};
use crate::relay::Relay;
use crate::route::{Direction, Rule};

/// Responses of at most this length are held, so that each failure can become a status.
const HELD_RESPONSE_BYTES_MAX: u64 = 256 << 10;

/// Most bytes of a streamed body that are collected before it is forwarded.
const START_BYTES_MAX: usize = 64 << 10;

/// Longest wait for the end of an unreadable body of unknown length, which is accepted only if it
/// is empty.
const END_WAIT: Duration = Duration::from_secs(1);

const UNCERTAIN_END: Reason =
    Reason::UpstreamBroken("a body without length: a broken connection looks like its end");

/// A body to edit, with the parts of its message that decide how it is edited.
pub struct Message<'a> {
    /// Shared state.
    pub relay: &'a Relay,
    /// Rules and their contexts.
    pub scope: Arc<Scope>,
    /// Headers of the message.
    pub headers: &'a HeaderMap,
    /// Status of a response.
    pub status: Option<StatusCode>,
    /// If true, the receiver cannot distinguish a truncated body from a complete one, so the body
    /// must be held.
    pub must_hold: bool,
    /// If true, a truncated body looks like a complete one.
    pub is_close_delimited: bool,
    /// Memory for the body.
    pub memory: &'a Account,
}

/// A body after the rules were applied, or its first part.
pub enum Edited {
    /// No rule is for the body.
    Unchanged(Source),
    /// The whole body.
    Held {
        /// The bytes of the body.
        bytes: Bytes,
        /// Memory that the body holds until it was sent.
        memory: Reservation,
        /// True if the rules were applied.
        was_edited: bool,
    },
    /// A body whose rest is edited while it is sent.
    Streams(Box<Outgoing>),
}

/// Format, decoder and rules of a body.
type Readable = (Format, Option<Decoder>, Arc<RuleSet>);

impl Message<'_> {
    /// Applies the rules.
    ///
    /// # Errors
    /// The first failure. The caller must then forward nothing of the body.
    pub async fn edit_body(&self, mut source: Source) -> Result<Edited, Failure> {
        let direction = self.scope.direction();
        if direction.rules.iter().all(|rule| rule.body.is_none()) {
            return Ok(Edited::Unchanged(source));
        }
        let readable = self.choose_format(direction);
        let passes = readable.is_err() && self.passes_unread(direction);
        // Do not wait for a body that passes. Wait only briefly for a body that is rejected unless
        // it is empty.
        let is_empty = match &readable {
            Ok(_) => body::is_empty(&mut source).await?,
            Err(_) if passes || self.headers.contains_key(EXPECT) => source.is_end_stream(),
            Err(_) => timeout(END_WAIT, body::is_empty(&mut source))
                .await
                .unwrap_or(Ok(false))?,
        };

        if is_empty && self.is_close_delimited && !passes {
            return Err(self.scope.failure(UNCERTAIN_END));
        }
        if is_empty {
            let is_missing = self.scope.phase == Phase::Request
                && direction.rules.iter().any(Rule::requires_body_value);
            return if is_missing {
                Err(self.scope.failure(Reason::Missing))
            } else {
                Ok(Edited::Unchanged(source))
            };
        }

        match readable {
            // Boxed: otherwise a request without rules would carry the size of this future.
            Ok(readable) => Box::pin(self.apply_rules(direction, readable, source)).await,
            Err(_) if passes => Ok(Edited::Unchanged(source)),
            Err(reason) => Err(self.scope.failure(reason)),
        }
    }

    /// Holds a body that passes, unless its length is known.
    ///
    /// # Errors
    /// A failure of the source, or a body beyond the limit.
    pub async fn hold_body(&self, mut source: Source) -> Result<Edited, Failure> {
        if source.size_hint().exact().is_some() {
            return Ok(Edited::Unchanged(source));
        }
        let max = self.scope.direction().body_bytes_max;
        let mut memory = self.memory.clone().new_reservation();
        let mut bytes = BytesMut::new();
        while let Some(frame) = source.frame().await.transpose()? {
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let len = bytes.len() + data.len();
            if len > max {
                return Err(self.scope.failure(Reason::TooLarge("body", max as u64)));
            }
            // The buffer grows to up to twice its length.
            memory
                .grow_to(2 * len)
                .map_err(|error| self.scope.failure(error.into()))?;
            bytes.extend_from_slice(&data);
        }
        Ok(Edited::Held {
            bytes: bytes.freeze(),
            memory,
            was_edited: false,
        })
    }

    /// Returns true if an unreadable body passes because the route permits it. An error page of an
    /// upstream also passes if the rules only reveal: the page is unchanged, and nothing in it is
    /// revealed.
    fn passes_unread(&self, direction: &Direction) -> bool {
        let is_error = self
            .status
            .is_some_and(|status| status.is_client_error() || status.is_server_error());
        direction.pass_unparsed
            || (is_error && direction.rules.iter().all(|rule| rule.action.reveals()))
    }

    /// Returns format, decoder and rules for the body's type and coding.
    fn choose_format(&self, direction: &Direction) -> Result<Readable, Reason> {
        let content_type = single_value(self.headers, CONTENT_TYPE)
            .map_err(|()| Reason::Unreadable("several content types"))?;
        let content_type = content_type.ok_or(Reason::Unreadable("no content type"))?;
        let format = Format::from_content_type(content_type)
            .map_err(|error| Reason::Unreadable(error.text()))?;
        let rules = direction
            .body_rules(&format)
            .ok_or(Reason::Unreadable("no rule for this content type"))?;

        let coding = single_value(self.headers, CONTENT_ENCODING)
            .map_err(|()| Reason::Unreadable("several content codings"))?;
        let decoder = Decoder::new(
            coding.unwrap_or("identity"),
            self.relay.limits.decoded_bytes as u64,
        );
        let decoder = decoder.map_err(|error| error.to_reason())?;
        Ok((format, decoder, rules))
    }

    /// Waits for the first edited bytes, and collects the edited bytes that are ready. A short body
    /// that arrived at once is held as a whole, so that each failure can become a status.
    async fn start_stream(&self, mut editor: Editor) -> Result<Edited, Failure> {
        let mut frames = VecDeque::new();
        let mut next = editor.next_frame().await?;
        let mut bytes = 0;
        loop {
            let Some(frame) = next else {
                return Ok(Edited::Held {
                    bytes: join_frames(frames.into()),
                    memory: editor.into_memory(),
                    was_edited: true,
                });
            };
            bytes += frame.len();
            frames.push_back(frame);
            next = match editor.next_frame().now_or_never() {
                Some(next) if bytes < START_BYTES_MAX => next?,
                Some(next) => {
                    frames.extend(next?);
                    break;
                }
                None => break,
            };
        }
        Ok(Edited::Streams(Box::new(Outgoing::from_editor(
            frames, editor,
        ))))
    }

    /// Applies the rules to a body that is not empty.
    async fn apply_rules(
        &self,
        direction: &Direction,
        (format, decoder, rules): Readable,
        source: Source,
    ) -> Result<Edited, Failure> {
        let limits = &self.relay.limits;
        // Malformed lines and events pass one by one. In other formats, the whole body passes.
        let has_records = matches!(format, Format::JsonLines | Format::EventStream);
        let passes_unparsed = self.passes_unread(direction);
        let length = content_length(self.headers).filter(|_| decoder.is_none());
        // An error page that is too long to be held is streamed.
        let is_long = length.is_some_and(|length| length > direction.body_bytes_max as u64);
        let may_hold = direction.pass_unparsed || !direction.stream || !is_long;
        let passes_original = passes_unparsed && !has_records && may_hold;
        let limits_of_scanner = sealwire_relay_body::Limits {
            may_be_cut: self.is_close_delimited,
            ..scanner_limits(self.relay, passes_unparsed && has_records)
        };

        // JSON ends with its last bracket, and readers drop an event without its final blank line.
        if self.is_close_delimited && !matches!(format, Format::Json | Format::EventStream) {
            let can_pass = passes_unparsed && !direction.pass_unparsed;
            return if can_pass {
                Ok(Edited::Unchanged(source))
            } else {
                Err(self.scope.failure(UNCERTAIN_END))
            };
        }

        let scanner = direction.new_scanner(format, rules, limits_of_scanner, self.scope.phase);
        let is_short = self.scope.phase == Phase::Response
            && length.is_some_and(|length| length <= HELD_RESPONSE_BYTES_MAX);
        let holds = self.must_hold
            || !direction.stream
            || passes_original
            || is_short
            || decoder.as_ref().is_some_and(Decoder::holds_input);
        let body_max = if decoder.is_some() {
            limits.decoded_bytes
        } else {
            direction.body_bytes_max
        };

        let expected = length.map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
        if holds && expected > body_max {
            return Err(self
                .scope
                .failure(Reason::TooLarge("body", body_max as u64)));
        }

        let extent = if holds {
            Extent::Held {
                bytes_max: body_max,
            }
        } else {
            Extent::Streams {
                memory_bytes_max: limits.stream_window_bytes,
            }
        };
        let memory = self.memory.clone().new_reservation();
        let engine = self.relay.engine.clone();
        let mut editor = Editor::new(
            source,
            decoder,
            scanner,
            engine,
            Arc::clone(&self.scope),
            extent,
            memory,
        );

        if !holds {
            return self.start_stream(editor).await;
        }
        if passes_original {
            editor.keep_originals();
        }
        match editor.collect_frames().await {
            Ok(frames) => Ok(Edited::Held {
                bytes: join_frames(frames),
                memory: editor.into_memory(),
                was_edited: true,
            }),
            Err(failure) if passes_original && matches!(failure.reason, Reason::Malformed(_)) => {
                let (frames, memory) = editor.into_originals().await?;
                Ok(Edited::Held {
                    bytes: join_frames(frames),
                    memory,
                    was_edited: true,
                })
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Returns the limits of a scanner.
pub fn scanner_limits(relay: &Relay, pass_unparsed: bool) -> sealwire_relay_body::Limits {
    let limits = &relay.limits;
    sealwire_relay_body::Limits {
        value_bytes_max: limits.value_bytes,
        record_bytes_max: limits.record_bytes,
        pass_unparsed,
        ..sealwire_relay_body::Limits::default()
    }
}

/// Returns the only value of a header as text. Fails if the header has several values, or one that
/// is not visible ASCII.
fn single_value(headers: &HeaderMap, name: http::HeaderName) -> Result<Option<&str>, ()> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        Err(())
    } else {
        value.to_str().map(Some).map_err(|_| ())
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    single_value(headers, CONTENT_LENGTH).ok()??.parse().ok()
}

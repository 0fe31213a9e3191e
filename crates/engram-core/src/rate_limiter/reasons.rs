//! Why calls wait for a rate limiter, as texts.

use std::cmp::Ordering;

use super::{RateLimiter, RateLimits, compare};

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
impl RateLimiter {
    /// The end of a text about a table with too few items, if some were removed.
    fn describe_removed(&self) -> String {
        if self.deletes == 0 {
            return String::new();
        }
        format!(
            "; {} of the {} inserted items were removed again",
            format_number(self.deletes as f64),
            format_number(self.inserts as f64)
        )
    }

    /// Why the limiter blocks samples; `None` if it allows one.
    #[must_use]
    pub fn why_sampling_waits(&self) -> Option<String> {
        if self.can_sample(1) {
            return None;
        }
        let RateLimits {
            min_size, min_diff, ..
        } = self.limits;
        let limiter = self.limits.label();
        let size = self.size();
        // A table that needs one item, such as a queue, is often empty.
        let removed = if min_size > 1 {
            self.describe_removed()
        } else {
            String::new()
        };
        if size == 0 && min_size > 0 {
            return Some(format!(
                "sampling waits: the table is empty ({limiter}){removed}"
            ));
        }
        if size < min_size {
            return Some(format!(
                "sampling waits: the table has {} of the {} items it needs ({limiter}){removed}",
                format_number(size as f64),
                format_number(min_size as f64)
            ));
        }
        let diff = self.diff();
        let lead = if compare(diff, 0.0).is_eq() {
            "the learner has caught up with the writers".into()
        } else {
            describe_lead(diff)
        };
        let margin = format_samples(min_diff.abs());
        let allowed = match compare(min_diff, 0.0) {
            Ordering::Greater => format!("keeps writers at least {margin} ahead"),
            Ordering::Equal => "does not let the learner get ahead".into(),
            Ordering::Less => format!("lets the learner get at most {margin} ahead"),
        };
        let reason = match (compare(diff, min_diff), compare(min_diff, 0.0)) {
            (Ordering::Equal, Ordering::Greater) => format!(", the minimum of {limiter}"),
            (Ordering::Equal, Ordering::Equal) => format!(", which is as far as {limiter} allows"),
            (Ordering::Equal, Ordering::Less) => format!(", the limit of {limiter}"),
            (Ordering::Greater, _) => format!("; one more sample is too many: {limiter} {allowed}"),
            (Ordering::Less, _) => format!("; {limiter} {allowed}"),
        };
        Some(format!(
            "sampling waits: {lead}{reason} {}",
            self.format_diff()
        ))
    }

    /// Why the limiter blocks inserts; `None` if it allows one. `hidden_items`: see [`crate::TableStats`].
    #[must_use]
    pub fn why_inserting_waits(&self, hidden_items: u64) -> Option<String> {
        if self.can_insert(1, hidden_items) {
            return None;
        }
        if let Some(reason) = self.describe_full_queue(hidden_items) {
            return Some(format!("inserting waits: {reason}"));
        }
        let max_diff = self.limits.max_diff;
        let limiter = self.limits.label();
        let diff = self.diff();
        let lead = if compare(diff, 0.0).is_eq() {
            "writers have caught up with the learner".into()
        } else {
            describe_lead(diff)
        };
        let allowed = match compare(max_diff, 0.0) {
            Ordering::Greater => format!(
                "lets writers get at most {} ahead",
                format_samples(max_diff)
            ),
            Ordering::Equal => "does not let writers get ahead".into(),
            Ordering::Less => format!(
                "keeps the learner at least {} ahead",
                format_samples(-max_diff)
            ),
        };
        let reason = match (compare(diff, max_diff), compare(max_diff, 0.0)) {
            (Ordering::Equal, Ordering::Less) => format!(", the minimum of {limiter}"),
            (Ordering::Equal, Ordering::Equal) => format!(", which is as far as {limiter} allows"),
            (Ordering::Equal, Ordering::Greater) => format!(", the limit of {limiter}"),
            (Ordering::Greater, _) => format!("; {limiter} {allowed}"),
            (Ordering::Less, _) => {
                let each = format_samples(self.limits.samples_per_insert);
                format!("; one more item adds {each}, but {limiter} {allowed}")
            }
        };
        Some(format!(
            "inserting waits: {lead}{reason} {}",
            self.format_diff()
        ))
    }

    /// Why a full queue or stack blocks inserts. `None` for other limiters, and if sampled items stay in the table
    /// even without leases: then `diff` is not the number of unsampled items.
    fn describe_full_queue(&self, hidden_items: u64) -> Option<String> {
        let RateLimits { kind, max_diff, .. } = &self.limits;
        let unsampled = self.diff();
        let removed = unsampled - self.size().saturating_sub(hidden_items) as f64;
        if !matches!(&**kind, "Queue" | "Stack") || removed < 0.0 {
            return None;
        }
        let (max_diff, unsampled) = (format_number(*max_diff), format_number(unsampled));
        let items = match &*unsampled {
            "1" => "item is",
            _ => "items are",
        };
        let removed = match &*format_number(removed) {
            "0" => String::new(),
            "1" => "; 1 of them was removed, but counts until the table is reset".into(),
            many => format!("; {many} of them were removed, but count until the table is reset"),
        };
        Some(format!(
            "{kind}({max_diff}) is full: {unsampled} inserted {items} not sampled yet{removed}"
        ))
    }

    /// The calculation of `diff`: `(2,420 inserted x 64 samples per insert - 88,832 sampled = 66,048)`.
    fn format_diff(&self) -> String {
        let diff = self.diff();
        let sign = if diff < 0.0 { "-" } else { "" };
        format!(
            "({} inserted x {} per insert - {} sampled = {sign}{})",
            format_number(self.inserts as f64),
            format_samples(self.limits.samples_per_insert),
            format_number(self.samples as f64),
            format_number(diff.abs())
        )
    }
}

/// Describes whether writers or learner are ahead, and by how much; `diff` is not 0.
fn describe_lead(diff: f64) -> String {
    if diff > 0.0 {
        format!("writers are {} ahead of the learner", format_samples(diff))
    } else {
        format!(
            "the learner is {} ahead of the writers",
            format_samples(-diff)
        )
    }
}

/// A number and `sample` or `samples`.
fn format_samples(count: f64) -> String {
    let count = format_number(count);
    let unit = if count == "1" { "sample" } else { "samples" };
    format!("{count} {unit}")
}

/// Formats a number that is not negative, with commas between thousands and up to three decimals:
/// `66,048`, `0.5`; numbers of 10^15 or more as `1e15`.
fn format_number(value: f64) -> String {
    if value >= 1e15 {
        return format!("{value:e}");
    }
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let (whole, decimals) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::new();
    for (index, digit) in whole.char_indices() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + decimals
}

#[cfg(test)]
mod tests {
    use super::super::tests::ratio;
    use super::*;

    /// Texts for sampling and for inserting after `[inserts, samples, deletes]`. Empty if not blocked.
    fn texts(limits: RateLimits, [inserts, samples, deletes]: [u64; 3]) -> [String; 2] {
        let mut limiter = RateLimiter::new(limits);
        (limiter.inserts, limiter.samples, limiter.deletes) = (inserts, samples, deletes);
        let texts = [limiter.why_sampling_waits(), limiter.why_inserting_waits(0)];
        texts.map(Option::unwrap_or_default)
    }

    fn why_sampling(limits: RateLimits, counts: [u64; 3]) -> String {
        let [sampling, inserting] = texts(limits, counts);
        assert_eq!(inserting, "");
        sampling
    }

    fn why_inserting(limits: RateLimits, counts: [u64; 3]) -> String {
        let [sampling, inserting] = texts(limits, counts);
        assert_eq!(sampling, "");
        inserting
    }

    #[test]
    fn texts_of_a_table_with_too_few_items() {
        assert_eq!(
            why_sampling(RateLimits::min_size(1_000_000), [37_000, 0, 0]),
            "sampling waits: the table has 37,000 of the 1,000,000 items it needs (MinSize)"
        );
        assert_eq!(
            why_sampling(RateLimits::queue(1), [5, 5, 5]),
            "sampling waits: the table is empty (Queue)"
        );
        assert_eq!(
            why_sampling(RateLimits::min_size(100), [1_000, 0, 963]),
            "sampling waits: the table has 37 of the 100 items it needs (MinSize); 963 of the 1,000 inserted items were \
             removed again"
        );
        assert_eq!(
            why_sampling(RateLimits::min_size(100), [10, 0, 10]),
            "sampling waits: the table is empty (MinSize); 10 of the 10 inserted items were removed again"
        );
        assert_eq!(texts(RateLimits::min_size(1), [1, 1_000_000, 0]), ["", ""]);
    }

    #[test]
    fn texts_of_a_full_queue() {
        assert_eq!(
            why_inserting(RateLimits::queue(4), [7, 3, 3]),
            "inserting waits: Queue(4) is full: 4 inserted items are not sampled yet"
        );
        assert_eq!(
            why_inserting(RateLimits::queue(3), [3, 0, 2]),
            "inserting waits: Queue(3) is full: 3 inserted items are not sampled yet; 2 of them were removed, but \
             count until the table is reset"
        );
        // Sampled items have stayed in the table, so the text does not count unsampled items.
        assert_eq!(
            why_inserting(RateLimits::queue(4), [7, 3, 0]),
            "inserting waits: writers are 4 samples ahead of the learner, the limit of Queue (7 inserted \
             x 1 sample per insert - 3 sampled = 4)"
        );
        // All items are leased.
        assert_eq!(
            why_sampling(RateLimits::queue(4), [3, 3, 0]),
            "sampling waits: the learner has caught up with the writers, which is as far as Queue allows (3 \
             inserted x 1 sample per insert - 3 sampled = 0)"
        );
    }

    #[test]
    fn texts_of_blocked_inserts() {
        assert_eq!(
            why_inserting(ratio(64.0, 1, 0.0, 66_048.0), [2_420, 88_832, 0]),
            "inserting waits: writers are 66,048 samples ahead of the learner, the limit of \
             SampleToInsertRatio(64) (2,420 inserted x 64 samples per insert - 88,832 sampled = 66,048)"
        );
        let text = |max_diff, inserts, samples| {
            let text = why_inserting(ratio(1.5, 1, -100.0, max_diff), [inserts, samples, 0]);
            text.strip_prefix("inserting waits: ").unwrap().to_owned()
        };
        assert_eq!(
            text(4.0, 2, 0),
            "writers are 3 samples ahead of the learner; one more item adds 1.5 samples, but \
             SampleToInsertRatio(1.5) lets writers get at most 4 samples ahead (2 inserted x 1.5 samples per \
             insert - 0 sampled = 3)"
        );
        assert_eq!(
            text(1.0, 3, 0),
            "writers are 4.5 samples ahead of the learner; SampleToInsertRatio(1.5) lets writers get at most \
             1 sample ahead (3 inserted x 1.5 samples per insert - 0 sampled = 4.5)"
        );
        assert_eq!(
            text(0.0, 2, 3),
            "writers have caught up with the learner, which is as far as SampleToInsertRatio(1.5) allows (2 \
             inserted x 1.5 samples per insert - 3 sampled = 0)"
        );
        assert_eq!(
            text(0.0, 2, 4),
            "the learner is 1 sample ahead of the writers; one more item adds 1.5 samples, but \
             SampleToInsertRatio(1.5) does not let writers get ahead (2 inserted x 1.5 samples per \
             insert - 4 sampled = -1)"
        );
        assert_eq!(
            text(-2.0, 2, 5),
            "the learner is 2 samples ahead of the writers, the minimum of SampleToInsertRatio(1.5) (2 \
             inserted x 1.5 samples per insert - 5 sampled = -2)"
        );
        assert_eq!(
            text(-2.0, 2, 6),
            "the learner is 3 samples ahead of the writers; one more item adds 1.5 samples, but \
             SampleToInsertRatio(1.5) keeps the learner at least 2 samples ahead (2 inserted x 1.5 samples per insert \
             - 6 sampled = -3)"
        );
    }

    #[test]
    fn texts_of_blocked_samples() {
        let text = |min_diff, inserts, samples| {
            let limits = RateLimits {
                kind: "RateLimiter".into(),
                ..ratio(0.5, 1, min_diff, 1e300)
            };
            let text = why_sampling(limits, [inserts, samples, 0]);
            text.strip_prefix("sampling waits: ").unwrap().to_owned()
        };
        assert_eq!(
            text(0.0, 4, 2),
            "the learner has caught up with the writers, which is as far as RateLimiter allows (4 inserted \
             x 0.5 samples per insert - 2 sampled = 0)"
        );
        assert_eq!(
            text(0.0, 5, 2),
            "writers are 0.5 samples ahead of the learner; one more sample is too many: RateLimiter does not let the \
             learner get ahead (5 inserted x 0.5 samples per insert - 2 sampled = 0.5)"
        );
        assert_eq!(
            text(-2_000.0, 4, 2_002),
            "the learner is 2,000 samples ahead of the writers, the limit of RateLimiter (4 inserted x 0.5 \
             samples per insert - 2,002 sampled = -2,000)"
        );
        assert_eq!(
            text(-2.0, 3, 3),
            "the learner is 1.5 samples ahead of the writers; one more sample is too many: RateLimiter lets the \
             learner get at most 2 samples ahead (3 inserted x 0.5 samples per insert - 3 sampled = -1.5)"
        );
        assert_eq!(
            text(10.0, 24, 2),
            "writers are 10 samples ahead of the learner, the minimum of RateLimiter (24 inserted x 0.5 samples \
             per insert - 2 sampled = 10)"
        );
        assert_eq!(
            text(10.0, 4, 0),
            "writers are 2 samples ahead of the learner; RateLimiter keeps writers at least 10 samples ahead (4 \
             inserted x 0.5 samples per insert - 0 sampled = 2)"
        );
    }

    #[test]
    fn numbers_have_commas_and_few_decimals() {
        for (value, text) in [
            (0.0, "0"),
            (999.0, "999"),
            (1_000.0, "1,000"),
            (123_456.789_1, "123,456.789"),
            (1_234_567.5, "1,234,567.5"),
            (0.1 + 0.2, "0.3"),
            (1e15, "1e15"),
        ] {
            assert_eq!(format_number(value), text);
        }
    }
}

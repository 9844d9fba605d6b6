//! The page that people look at: plain HTML, which refreshes itself and loads nothing.

use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime};

use super::elections::{Change, Standing};
use crate::go_duration::Shown;

const REFRESH: Duration = Duration::from_secs(2);

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1rem}\
h1{font-size:1.3rem}h2{font-size:1.1rem;margin-top:2rem}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.35rem .6rem .35rem 0;border-bottom:1px solid #8884;overflow-wrap:anywhere}\
td.n{white-space:nowrap}\
.none{color:#b00020}\
@media(prefers-color-scheme:dark){.none{color:#ff8a80}}\
@media(max-width:40rem){thead{display:none}tr{display:block;padding:.5rem 0;border-bottom:1px solid #8884}\
td{display:block;border:0;padding:0}td::before{content:attr(data-name) ': ';font-weight:600}}";

pub(super) struct Page<'a> {
    pub store: &'a str,
    pub lease: Duration,
    pub standings: &'a [Standing],
    pub changes: &'a [Change],
    pub now: SystemTime,
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = REFRESH.as_secs();
        write!(
            f,
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta http-equiv=\"refresh\" content=\"{seconds}\">\
             <title>Elections</title><style>{STYLE}</style></head><body>\
             <h1>Elections</h1><p>On {}, with leases of {}. {}</p>",
            Text(self.store),
            Shown(self.lease),
            Time(self.now),
        )?;
        if self.standings.is_empty() {
            f.write_str("<p>Nobody has checked in yet.</p>")?;
        } else {
            self.table(f)?;
        }
        if !self.changes.is_empty() {
            self.history(f)?;
        }
        f.write_str("</body></html>\n")
    }
}

impl Page<'_> {
    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "<table id=\"elections\"><thead><tr><th>Resource</th><th>Leader</th><th>For</th>\
             <th>Lease left</th></tr></thead><tbody>",
        )?;
        for standing in self.standings {
            write!(
                f,
                "<tr><td data-name=\"Resource\">{}</td>",
                Text(standing.resource.as_str())
            )?;
            match &standing.leader {
                Some(leader) => {
                    let since = self.now.duration_since(standing.since).unwrap_or_default();
                    let left = standing.remaining.unwrap_or_default();
                    write!(
                        f,
                        "<td data-name=\"Leader\">{}</td><td class=\"n\" data-name=\"For\">{}</td>\
                         <td class=\"n\" data-name=\"Lease left\">{}</td></tr>",
                        Text(leader.owner.instance.as_str()),
                        Long(since),
                        Shown(tenths(left)),
                    )?;
                }
                None => f.write_str(
                    "<td class=\"none\" data-name=\"Leader\">nobody</td><td data-name=\"For\"></td>\
                     <td data-name=\"Lease left\"></td></tr>",
                )?,
            }
        }
        f.write_str("</tbody></table>")
    }

    fn history(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "<h2>Last changes</h2><table id=\"changes\"><thead><tr><th>When</th><th>Resource</th>\
             <th>Leader</th></tr></thead><tbody>",
        )?;
        for change in self.changes {
            write!(
                f,
                "<tr><td class=\"n\" data-name=\"When\">{}</td><td data-name=\"Resource\">{}</td>",
                Time(change.at),
                Text(change.resource.as_str()),
            )?;
            match &change.leader {
                Some(leader) => write!(
                    f,
                    "<td data-name=\"Leader\">{}</td></tr>",
                    Text(leader.owner.instance.as_str())
                )?,
                None => f.write_str("<td class=\"none\" data-name=\"Leader\">nobody</td></tr>")?,
            }
        }
        f.write_str("</tbody></table>")
    }
}

fn tenths(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis() / 100 * 100).unwrap_or(u64::MAX))
}

/// A text, and no markup, also as the value of an attribute.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c => f.write_char(c),
        })
    }
}

/// A moment, as RFC 3339 in UTC.
pub(super) struct Time(pub SystemTime);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = jiff::Timestamp::try_from(self.0).unwrap_or_default();
        write!(f, "{moment:.3}")
    }
}

/// In the two largest units.
struct Long(Duration);

impl fmt::Display for Long {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
        match (days, hours, minutes) {
            (0, 0, 0) => write!(f, "{seconds} s"),
            (0, 0, _) => write!(f, "{minutes} min {} s", seconds % 60),
            (0, _, _) => write!(f, "{hours} h {} min", minutes % 60),
            _ => write!(f, "{days} d {} h", hours % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::ElectionName;

    #[test]
    fn a_name_is_never_markup() {
        let resource = ElectionName::new("<script>alert('1')</script>&\"").unwrap();
        let changes = [Change {
            at: SystemTime::UNIX_EPOCH,
            resource,
            leader: None,
        }];
        let page = Page {
            store: "<b>",
            lease: Duration::from_secs(5),
            standings: &[],
            changes: &changes,
            now: SystemTime::UNIX_EPOCH,
        };
        let html = page.to_string();
        assert!(!html.contains("<script") && !html.contains("<b>"), "{html}");
        assert!(html.contains("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;"));
        assert!(html.contains("1970-01-01T00:00:00.000Z"), "{html}");
    }
}

package status

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Whatever others wrote is shown in part: an error may hold an answer of a server, and a name what a pod says of
// itself.
const (
	maxShown = 300  // runes
	maxRead  = 4096 // bytes; looking for credentials takes its time
)

// secrets are what credentials look like in errors and addresses. Sources leave them out of what they say;
// this is for what a library puts into its errors.
var (
	addresses = regexp.MustCompile(`(?i)\b[a-z][a-z0-9+.-]*://[^\s"'<>]+`)
	schemes   = regexp.MustCompile(`(?i)\b(bearer|basic|negotiate)(\s+|%20)[^\s"',;]+`)
	named     = regexp.MustCompile(`(?i)\b((?:proxy-)?authorization|cookie|set-cookie|x-[a-z0-9-]*(?:key|token|auth|secret|signature)[a-z0-9-]*|[a-z0-9_-]*(?:token|password|passwd|secret|api[_-]?key|signature|credential))("?\s*[:=]\s*"?)[^\s"',;&]+`)
)

const hidden = "…"

// clean makes a text of somebody else fit to be shown: short, without credentials, and without characters
// that change how the text around them is read.
func clean(s string) string {
	if len(s) > maxRead {
		s = s[:maxRead]
		// What begins an address may be cut before its @, by which it is told what is secret.
		if i := strings.LastIndex(s, "://"); i >= 0 && !strings.ContainsAny(s[i:], " \t\n\"'<>") {
			s = s[:i]
		}
		s += hidden
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = addresses.ReplaceAllStringFunc(s, address)
	s = schemes.ReplaceAllString(s, "$1 "+hidden)
	s = named.ReplaceAllString(s, "$1$2"+hidden)
	var out strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > maxShown {
			out.WriteString(hidden)
			break
		}
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			out.WriteByte(' ')
		case unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp):
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// address leaves out of a URL who asks, and its parameters.
func address(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		scheme, rest, _ := strings.Cut(s, "://")
		// It cannot be told where the password ends.
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			rest = rest[i+1:]
		}
		rest, _, _ = strings.Cut(rest, "#")
		if before, _, asked := strings.Cut(rest, "?"); asked {
			rest = before + "?" + hidden
		}
		return scheme + "://" + rest
	}
	out := u.Scheme + "://" + u.Host + u.EscapedPath()
	// A password with a / in it ends the host for a parser.
	if i := strings.LastIndexByte(out, '@'); i >= 0 {
		out = u.Scheme + "://" + out[i+1:]
	}
	if u.RawQuery != "" {
		out += "?" + hidden
	}
	if strings.HasSuffix(s, ":") && !strings.HasSuffix(out, ":") {
		out += ":"
	}
	return out
}

// word is clean for what can be nothing but a name: of a namespace, a pod or an object.
func word(s string) string {
	if len(s) > utf8.UTFMax*maxShown {
		s = s[:utf8.UTFMax*maxShown] + hidden
	}
	return clean(s)
}

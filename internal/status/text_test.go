package status

import (
	"strings"
	"testing"
)

func TestCleanHidesCredentials(t *testing.T) {
	for text, want := range map[string]string{
		`Get "http://user:pa/ss@host:9090/api?token=s3cret": EOF`: `Get "http://host:9090/api?…": EOF`,
		`Get "https://user@host/metrics": EOF`:                    `Get "https://host/metrics": EOF`,
		`Get "https://user:p%40ss@host/x#s3cret": EOF`:            `Get "https://host/x": EOF`,
		`http://[::1/?token=s3cret`:                               `http://[::1/?…`,
		`http://u:p?w@host/x`:                                     `http://host/x`,
		`http://10.0.0.1:8000/metrics`:                            `http://10.0.0.1:8000/metrics`,
		`header Authorization: Bearer abc.def`:                    `header Authorization: … …`,
		`Bearer abc.def, and more`:                                `Bearer …, and more`,
		`Basic dXNlcjpwYXNz`:                                      `Basic …`,
		`{"access_token":"s3cret","x":1}`:                         `{"access_token":"…","x":1}`,
		`password=s3cret; user=x`:                                 `password=…; user=x`,
		`X-Api-Key: s3cret`:                                       `X-Api-Key: …`,
		`X-Scope-OrgID: tenant`:                                   `X-Scope-OrgID: tenant`,
		`no first token for 90 s`:                                 `no first token for 90 s`,
		`the samples of vllm:generation_tokens_total cover 5s`:    `the samples of vllm:generation_tokens_total cover 5s`,
		`finished_reason=stop`:                                    `finished_reason=stop`,
	} {
		if got := clean(text); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
	// An address that is cut before its @.
	long := `reading http://user:` + strings.Repeat("s3cret", 1<<18) + "@host/"
	if got := clean(long); strings.Contains(got, "s3cret") {
		t.Errorf("an address that is cut shows %.60s", got)
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "http://a:b@c/d?e", "Bearer x", "a\u202eb", "\xff", "authorization: basic x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		const secret = "s3cr3tvalue"
		got := clean(s)
		if n := len([]rune(got)); n > 9*(maxShown+1) { // an escape has at most so many characters
			t.Errorf("%d runes are left of %d bytes", n, len(s))
		}
		for _, text := range []string{"http://user:" + secret + "@host/", "https://host/?token=" + secret, "Bearer " + secret} {
			if got := clean(text + " " + s); strings.Contains(got, secret) {
				t.Errorf("%q shows the secret: %s", s, got)
			}
		}
	})
}

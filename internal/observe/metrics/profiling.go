package metrics

import (
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"
)

const pprofPrefix = "/debug/pprof/"

// addProfiling adds what --profiling asks for.
func addProfiling(p *paths, o *ServerOptions) {
	p.exact["/debug/pprof"] = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, pprofPrefix, http.StatusFound)
	}
	p.prefix[pprofPrefix] = pprof.Index
	p.exact[pprofPrefix+"profile"] = pprof.Profile
	p.exact[pprofPrefix+"symbol"] = pprof.Symbol
	p.exact[pprofPrefix+"trace"] = pprof.Trace
	if o.SetVerbosity == nil {
		return
	}
	p.exact["/debug/flags"] = listFlags
	p.prefix["/debug/flags/"] = listFlags
	p.exact["/debug/flags/v"] = func(w http.ResponseWriter, r *http.Request) {
		putVerbosity(w, r, o.SetVerbosity)
	}
}

// listFlags names the flags that can be changed while nkp runs.
func listFlags(w http.ResponseWriter, _ *http.Request) {
	io.WriteString(w, `<html>
<head>
<title>/debug/flags/</title>
</head>
<body>
/debug/flags/<br>
<br>
flags:<br>
<table>
<tr>v<br>
</table>
<br>
full flags configurable<br>
</body>
</html>
`)
}

// maxVerbosity bounds the body of a request: a number of 32 bits.
const maxVerbosity = 64 // bytes

// putVerbosity changes how much is logged: PUT, with klog's number as the body.
func putVerbosity(w http.ResponseWriter, r *http.Request, set func(uint32)) {
	answer := func(code int, text string) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(code)
		fmt.Fprintln(w, text)
	}
	if r.Method != http.MethodPut {
		answer(http.StatusNotAcceptable, "unsupported http method")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxVerbosity))
	if err != nil {
		answer(http.StatusBadRequest, "error reading request body: "+err.Error())
		return
	}
	level, err := strconv.ParseUint(string(body), 10, 32)
	if err != nil {
		answer(http.StatusBadRequest, err.Error())
		return
	}
	set(uint32(level))
	answer(http.StatusOK, "successfully set klog.logging.verbosity to "+string(body))
}

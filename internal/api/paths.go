package api

// The requests, as patterns of http.ServeMux.
const (
	GetStatus   = "GET /v1/status"
	GetDiff     = "GET /v1/diff"
	GetServices = "GET /v1/services"
	GetInForce  = "GET /v1/inforce"
	GetPods     = "GET /v1/pods"
	GetFlows    = "GET /v1/flows"
	GetReport   = "GET /v1/report"

	GetTrace  = "GET /v1/trace"
	GetSample = "GET /v1/trace/sample"
	SendProbe = "POST /v1/trace/probe"

	SetLogLevel = "POST /v1/log-level"
)

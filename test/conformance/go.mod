module github.com/nkp-proxy/nkp/test/conformance

go 1.26.8

require (
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	sigs.k8s.io/yaml v1.6.0 // indirect
)

// Package manifest reads API objects from YAML and JSON files: Load reads them once, a Source follows their changes.
//
// Files are decoded by sigs.k8s.io/yaml and sigs.k8s.io/json, as kubectl does, then completed and validated as an API server
// would (defaults.go, validate.go): what comes out is what an API server could have sent. Every error names the file, the document,
// the object and the field. One bad object does not affect the others, and its last good state stays in force.
//
// A file is cut into documents, and a List into its items (split.go). Items are decoded in parallel, and only those whose
// text changed. The size of a file, the depth and the aliases of a document, and the messages about it are bounded.
//
// Nothing else in nkp opens manifests. A Source keeps the objects that it reported: a caller must not change them.
package manifest

// Package manifest reads API objects from YAML and JSON files: Load reads them once, a Source follows their
// changes.
//
// Files are decoded by sigs.k8s.io/yaml and sigs.k8s.io/json, as kubectl does, then completed (defaults.go)
// and checked (validate.go). Every error names the file, the document, the object where it has a name, and
// the field. An object with an error does not affect the others of its file, and its last good state stays in
// force. A text that is not YAML affects its whole document. Values that the model ignores with a warning are
// the Tracker's to report.
//
// A changed file is decoded again, one document at a time. A document of YAML takes some thirty times its
// size in memory meanwhile, so that many objects are better kept in many documents, or in JSON. The size of a
// file, the depth and the aliases of a document, and the messages about it are bounded.
//
// Nothing else in nkp opens manifests. A Source keeps the objects that it reported: a caller must not change
// them.
package manifest

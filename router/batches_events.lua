-- Up to 200 events after a number. ARGV: prefix, id, '', number. Returns {{number-0, {'e', text}}, ...}
return redis.call('XRANGE', key .. ':events', '(' .. ARGV[4] .. '-0', '+', 'COUNT', 200)

-- Whose records these are. ARGV: prefix, records... Returns {record, tenant, ...}, without those that have left
local found = {}
for n = 2, #ARGV do
  local tenant = redis.call('HGET', P .. 'tenants', ARGV[n])
  if tenant then
    found[#found + 1] = ARGV[n]
    found[#found + 1] = tenant
  end
end
return found
